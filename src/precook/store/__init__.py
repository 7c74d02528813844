"""Keep it: trees to packs and back, the index, writers and readers."""
