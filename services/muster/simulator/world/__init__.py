"""The simulated world of the protocol: the real scheduler among users, gateways and agents; what can go wrong does; one seed."""
