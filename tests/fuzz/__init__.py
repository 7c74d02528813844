"""Fuzzing of all that may come from somebody else: a target for each format, and the replay of what was found."""
