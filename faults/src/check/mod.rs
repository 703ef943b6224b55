//! From a history to what in it was not as promised: one file per invariant.
