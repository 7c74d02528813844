"""Tests of precook.identity."""
