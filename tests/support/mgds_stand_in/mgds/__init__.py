"""A stand-in for mgds: the part of its contract that a cache module lives in, written anew for our tests."""
