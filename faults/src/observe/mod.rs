//! What happened: the log of Postgres decoded, the nodes' event files, samples.
