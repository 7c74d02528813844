"""What was worked out once and need not be again: columns of keys and values, kept in the index."""
