"""`muster up`: the whole stack on one machine. A small parent keeps its children alive: scheduler with gateway, and agents."""
