"""Making entries: what the encoders are."""
