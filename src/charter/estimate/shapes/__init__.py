"""What an architecture holds and does: parameters, operations, caches, layer by layer."""
