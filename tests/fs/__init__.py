"""Tests of precook.fs."""
