"""Published loads that schedulers are compared on, each played through the real core in virtual time."""
