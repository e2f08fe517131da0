"""What is killed: kinds of stages, how many processes they have, and how these share what they train."""

import os

THOROUGH = "CHARTER_CHAOS_KILLS" in os.environ
"""`make chaos`: everything. CI takes a part that keeps within its time."""
LAYOUTS: dict[str, dict[str, int]] = {
    "1": {},
    "2 DDP": {"world_size": 2},
    "2 FSDP2": {"world_size": 2, "zero": 3},
    "3 DDP": {"world_size": 3},
    "4 DDP": {"world_size": 4},
    "4 FSDP2": {"world_size": 4, "zero": 3},
}
KINDS_TOGETHER = ("sft", "preference_model", "ppo")
MAKE_RECORDS = ("prepare", "generate", "critique", "label", "eval")
"""Kinds that make records or figures, with every model in their own process."""
EACH = [(kind, name) for name in LAYOUTS if name != "1" for kind in KINDS_TOGETHER]
SOME = [("ppo", "2 DDP"), ("sft", "2 FSDP2"), ("ppo", "3 DDP"), ("preference_model", "4 DDP"), ("ppo", "4 FSDP2")]
TOGETHER = EACH if THOROUGH else SOME
"""Kinds and layouts of several processes."""


def processes(name: str) -> int:
    """How many processes a layout has."""
    return LAYOUTS[name].get("world_size", 1)
