"""The cluster-state view: a pure fold of the log.

`evolve` is the only code that changes the state for good. Nothing here knows a clock, a file or a broker.
"""
