"""Tests of precook.store."""
