"""Scenes as data: a cluster, steps with times, and what must be true; played on the real core with a virtual clock."""
