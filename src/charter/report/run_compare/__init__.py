"""Several runs side by side: what was asked, how it went, how it came out, what it cost."""
