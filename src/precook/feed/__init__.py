"""Use it: batches for training, right, now, and the same again after a resume."""
