"""One stage as another engine's configuration: pure rendering, with every field of the file accounted for."""
