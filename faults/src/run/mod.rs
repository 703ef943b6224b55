//! Scenarios, schedules from a seed, reports.
