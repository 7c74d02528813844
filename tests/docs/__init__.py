"""What the docs say holds."""
