//! What is broken, and how it is healed.
