"""The index: which pack and row hold a key. All SQL of precook stands here."""
