//! One lesson per file, each in the folder above, with its run line on top.
