"""`charter run serve`: a model of this machine behind OpenAI's HTTP API, for small runs and for tests."""
