"""Tests of precook.encode."""
