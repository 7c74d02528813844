"""Stores in buckets: what lies there, how it is found and read, and the process that asks for it."""
