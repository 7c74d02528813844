"""Benchmarks: precook beside its peers, in the same run on the same machine."""
