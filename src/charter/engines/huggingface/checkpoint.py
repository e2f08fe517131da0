"""Check that a checkpoint of the Trainer of transformers is whole: every file that its order of writing promises.

`trainer_state.json` is written last by rank 0; the generators of the other ranks may come later still, so they are
counted. Weights have headers that fit their files; what torch saves is a ZIP file, whose directory is at its end.
"""

import json
import zipfile
from pathlib import Path

from charter.artifacts.safetensors_file import read_header
from charter.engines.common.files import processes_in
from charter.engines.common.model_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from charter.errors import DataError

STATE, UNFINISHED = "trainer_state.json", "checkpoint-is-incomplete.txt"
_TORCH_FILES = frozenset({".pt", ".pth", ".bin"})


def is_whole(path: Path, step: int, work: Path) -> bool:
    """Return True if nothing of a checkpoint is missing or torn; False also if it vanishes or is written again."""
    try:
        return _is_whole(path, step, processes_in(work))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_whole(path: Path, step: int, processes: int) -> bool:
    if (path / UNFINISHED).exists() or _step_of(path / STATE) != step:
        return False
    names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    if not all((path / name).is_file() for name in names):
        return False
    files = [item for item in path.rglob("*") if item.is_file()]
    return _has_weights(path) and all(_is_readable(item) for item in files)


def _has_weights(path: Path) -> bool:
    """Whole weights with the names that an index gives, an adapter's, or the parts that FSDP and DeepSpeed write."""
    adapter = [(path / name).is_file() for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    if any(adapter) and not all(adapter):
        return False
    for index in path.glob("*.safetensors.index.json"):
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if not all((path / name).is_file() for name in named):
            return False
    if (path / "latest").is_file():
        return (path / (path / "latest").read_text(encoding="utf-8").strip()).is_dir()
    sharded = [part for part in path.glob("pytorch_model_fsdp_*") if part.is_dir()]
    optimizer = list(path.glob("optimizer*"))
    if sharded:
        return all(
            (part / ".metadata").is_file() for part in [*sharded, *(item for item in optimizer if item.is_dir())]
        )
    return bool(list(path.glob("*.safetensors"))) and bool(optimizer)


def _is_readable(path: Path) -> bool:
    if path.suffix == ".safetensors":
        try:
            read_header(path)
        except DataError:
            return False
    return zipfile.is_zipfile(path) if path.suffix in _TORCH_FILES else True


def _step_of(path: Path) -> int | None:
    try:
        step = json.loads(path.read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None
