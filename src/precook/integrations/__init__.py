"""Fronts: the calls that users of other caches already make, with our store underneath."""
