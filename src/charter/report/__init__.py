"""Text and HTML from plans, runs and ledgers: data in, text out."""
