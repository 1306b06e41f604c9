"""Everything that can happen, as types; how it is written down, and how it is read again."""
