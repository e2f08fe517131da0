"""What surrounds the accelerators: system memory, disks, bytes over the wire."""
