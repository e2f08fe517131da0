"""Cost of a whole project, its uncertainty, and cost per unit of what it makes."""
