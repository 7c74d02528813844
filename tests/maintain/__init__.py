"""Tests of precook.maintain."""
