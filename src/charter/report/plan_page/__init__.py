"""The HTML page of a plan, one module per part: values in, markup or chart data out."""
