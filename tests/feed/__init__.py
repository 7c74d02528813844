"""Tests of precook.feed."""
