"""Needs around the accelerators: system memory, disks, bytes over the wire."""
