"""Data sets and records as a page shows them: counts, lengths, labels, principles, and single records."""
