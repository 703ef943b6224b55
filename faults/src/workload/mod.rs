//! What a mesh is given to do: handlers in the nodes, clients outside.
