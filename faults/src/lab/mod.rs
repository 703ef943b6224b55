//! Hosts: where nodes and servers run, and what lies between them.
