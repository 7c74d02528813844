"""Make it: encoders, and the build that runs them over what is missing."""
