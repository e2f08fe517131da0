"""What runs leave behind: fingerprints, records, checkpoints, leases; durable and verified."""
