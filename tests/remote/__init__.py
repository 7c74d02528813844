"""Tests of stores in buckets."""
