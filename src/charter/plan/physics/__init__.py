"""Peak bytes and seconds of the phases of a stage on one accelerator, under the constants of its engine."""
