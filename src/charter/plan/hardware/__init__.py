"""Hardware that a stage could run on: accelerators, nodes, providers, prices, and this machine."""
