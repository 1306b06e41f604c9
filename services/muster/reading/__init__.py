"""YAML and JSON files as values that know where they stand, for whoever reads what people write: job files, manifests, scenes."""
