"""The pages: each reads what it needs from a snapshot, and hands a view model to its template."""
