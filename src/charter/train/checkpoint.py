"""The state of training as one file; the directory, its manifest and its publication are `artifacts`' affair."""

from pathlib import Path
from typing import Any

import torch

STATE_FILE = "state.pt"


def save_state(directory: Path, state: dict[str, Any]) -> None:
    """Write everything that a resume needs."""
    torch.save(state, directory / STATE_FILE)


def load_state(directory: Path) -> dict[str, Any]:
    """Read a verified checkpoint; only tensors and plain values are accepted, never code."""
    state: dict[str, Any] = torch.load(directory / STATE_FILE, map_location="cpu", weights_only=True)
    return state
