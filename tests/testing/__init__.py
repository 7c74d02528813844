"""What is shipped for the tests of others."""
