"""Tests of precook.config."""
