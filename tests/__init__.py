"""Tests of precook."""
