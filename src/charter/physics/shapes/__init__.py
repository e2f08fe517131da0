"""Contents and work of an architecture: parameters, operations, caches, layer by layer."""
