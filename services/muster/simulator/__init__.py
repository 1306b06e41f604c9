"""Virtual time: agents that answer at once, scenes as data, traces, and the simulated world for the protocol."""
