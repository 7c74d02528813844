"""Look after it: remove, compact, verify, repair and export what a store holds, and examine the machine it lies on."""
