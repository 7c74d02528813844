"""Tests of precook.plan."""
