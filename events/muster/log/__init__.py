"""The log of cycles: one port, its engines, and the one function that judges what stands in it."""
