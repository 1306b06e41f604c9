"""The agent: one process a node. It runs what the node is assigned and reports all that is true of the node."""
