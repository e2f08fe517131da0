"""Where a stage could run: accelerators, nodes, providers, prices, and this machine."""
