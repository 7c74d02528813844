"""Tests of precook.sources."""
