"""The config file: what it may say, and what is wrong with it."""
