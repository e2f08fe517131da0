"""From a row to a prediction: the configuration behind it, every gap filled, and the quantity it measures."""
