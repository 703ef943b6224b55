//! One lesson per file, each in this folder.
