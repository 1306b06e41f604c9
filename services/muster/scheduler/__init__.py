"""The scheduler: a recorder that turns the world into inputs, the engine, and the loop that appends what they say to the log."""
