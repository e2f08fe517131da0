"""Choose hardware and layout for each stage, and add up time and money."""
