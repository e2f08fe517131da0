"""What a node must show before an attempt starts on it, and which nodes take part."""
