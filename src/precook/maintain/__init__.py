"""Looking after a store: what is wrong with it or with the machine it lies on."""
