"""The layouts that are killed: how many processes a stage has, and how they share what they train."""

LAYOUTS: dict[str, dict[str, int]] = {
    "1": {},
    "2 DDP": {"world_size": 2},
    "2 FSDP2": {"world_size": 2, "zero": 3},
    "3 DDP": {"world_size": 3},
    "4 DDP": {"world_size": 4},
    "4 FSDP2": {"world_size": 4, "zero": 3},
}
SEVERAL = [name for name in LAYOUTS if name != "1"]


def processes(name: str) -> int:
    """How many processes a layout has."""
    return LAYOUTS[name].get("world_size", 1)
