"""Tests of precook.integrations."""
