"""What things are: digests, the canonical form, recipes and the identity of models, tokenizers and processors."""
