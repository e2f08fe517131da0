"""`charter serve`: a model of this machine behind an OpenAI-compatible HTTP server, for small runs and for tests."""
