"""The simulated world of the protocol: the real scheduler among producers, gateways and agents, all that can go wrong, one seed."""
