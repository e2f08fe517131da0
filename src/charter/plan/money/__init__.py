"""What a whole project costs, how far that may be off, and per unit of what it makes."""
