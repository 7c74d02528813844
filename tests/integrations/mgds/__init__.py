"""Tests of precook.integrations.mgds."""
