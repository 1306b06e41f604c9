"""Instruments over a recorded log: audit, and the state as it was at any cycle."""
