"""What is ready, what is missing, and why."""
