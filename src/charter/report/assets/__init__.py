"""Style, script and chart library of the HTML report."""
