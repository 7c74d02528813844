"""Coverage-guided fuzzing, and the replay of what it found."""
