"""Tests of precook.memo."""
