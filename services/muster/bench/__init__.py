"""How fast the engine decides: figures, each beside its floor."""
