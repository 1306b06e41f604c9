"""`make demo`: real processes on two nodes, their scheduler and an agent killed and started again, and what that proved."""
