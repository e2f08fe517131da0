"""Check that a checkpoint of verl is whole, file by file.

Read in verl 0.9.1: utils/checkpoint/fsdp_checkpoint_manager.py (three files of every rank, by their number; the model's
configuration and `fsdp_config.json` of rank 0), trainer/ppo/v1/trainer_base.py (`_save_checkpoint`: actor, critic,
`data.pt`, then `latest_checkpointed_iteration.txt`), utils/checkpoint/checkpoint_handler.py (SFT: `data_R.pt` of every
data-parallel rank; rank 0 names the step before it has waited for the others'). `torch.save` writes ZIP files, whose
directory is at their end.
"""

import json
import zipfile
from pathlib import Path
from typing import Any

import yaml

TRACKER = "latest_checkpointed_iteration.txt"
ACTOR, CRITIC = "actor", "critic"
RANK_FILES = ("model", "optim", "extra_state")
PPO_FILE, SFT_FILE = "ppo.yaml", "sft.yaml"


def tracked_step(checkpoints: Path) -> int:
    """The last step that verl has called whole; 0 where there is none, or the file is torn."""
    try:
        return int((checkpoints / TRACKER).read_text())
    except (OSError, ValueError):
        return 0


def is_whole(path: Path, work: Path) -> bool:
    """Return True if every file is there to its end, for the configuration in `work`."""
    try:
        if (work / PPO_FILE).exists():
            roles = [ACTOR, *([CRITIC] if _value(work / PPO_FILE, "critic", "enable") else [])]
            return all(_ranks(path / role) > 0 for role in roles) and zipfile.is_zipfile(path / "data.pt")
        shared = int(_value(work / SFT_FILE, "engine", "ulysses_sequence_parallel_size") or 1)
        ranks = _ranks(path)
        loaders = [path / f"data_{rank}.pt" for rank in range(ranks // shared)]
        return bool(loaders) and all(map(zipfile.is_zipfile, loaders))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _ranks(directory: Path) -> int:
    """Processes whose files are all there to their ends; 0 where one is not."""
    world = int(_json(directory / "fsdp_config.json")["world_size"])
    _json(directory / "huggingface" / "config.json")
    names = [f"{kind}_world_size_{world}_rank_{rank}.pt" for kind in RANK_FILES for rank in range(world)]
    return world if all(zipfile.is_zipfile(directory / name) for name in names) else 0


def _json(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _value(path: Path, section: str, name: str) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))[section].get(name)
