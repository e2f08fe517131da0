"""Facts with source and date: accelerators, prices, models."""
