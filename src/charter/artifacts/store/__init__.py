"""A second place for what was computed: content-addressed objects, and sealed lists that say what they are."""
