"""The figures of a cell and of its scheduler, for `muster.metrics`: what stands in docs/metrics.md under gateway and scheduler.

What counts is folded from admitted cycles, beside the state and never into it (`counts`), so it is the same in every gateway, and
after a restart: it is written down beside each snapshot. What stands is read from the state when the page is asked for, a bounded
piece between two cycles, and only where something changed since (`nodes`).
"""
