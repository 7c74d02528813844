"""Tests of precook.cli."""
