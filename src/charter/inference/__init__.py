"""Generate and score text with a language model."""
