"""Models behind OpenAI-compatible servers: asked over HTTP, every answer stored, every billed call in the ledger."""
