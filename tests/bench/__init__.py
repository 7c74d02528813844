"""The benchmarks run."""
