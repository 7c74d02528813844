"""How a module can be asked for items."""
