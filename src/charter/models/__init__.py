"""Language models and their heads: load, save, tokenizers."""
