"""A checkpoint's files: tensors by torch.distributed.checkpoint, one JSON file of values, one file of shared buffers.

`.metadata` of torch.distributed.checkpoint is a pickle: it is read only after the manifest's hashes have been checked.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from charter.artifacts import durable
from charter.artifacts.disk_space import is_disk_full
from charter.artifacts.file_facts import files_under
from charter.errors import StageError
from charter.models.ranks import Ranks

VALUES_FILE, BUFFERS_FILE = "state.json", "buffers.safetensors"
WRITING_THREADS = 2
"""Files that a process writes at once: so the flushing of one overlaps with the writing of another."""


def own_tensors(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """What this process writes: its shards, and its part of the tensors that every process holds whole."""
    loads = [0] * ranks.world_size
    mine: dict[str, Tensor] = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    whole = {name: tensor for name, tensor in tensors.items() if name not in mine}
    for name in sorted(whole, key=lambda name: (-whole[name].nbytes, name)):
        writer = min(range(ranks.world_size), key=loads.__getitem__)
        loads[writer] += whole[name].nbytes + 1
        if writer == ranks.rank:
            mine[name] = whole[name]
    return mine


def write_tensors(directory: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write this process's part; every process of the stage does so together."""
    _expect_no_group()
    writer = FileSystemWriter(directory, thread_count=WRITING_THREADS, sync_files=True)
    group, alone = ranks.saving_group, ranks.world_size == 1
    try:
        save(dict(tensors), storage_writer=writer, process_group=group, no_dist=alone)
    except CheckpointException as error:
        raise _plain_error(error, f"{directory}: the tensors could not be written") from error


def read_tensors(directory: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Fill the given tensors in place from a verified checkpoint, however many processes wrote it."""
    _expect_no_group()
    group, alone = ranks.saving_group, ranks.world_size == 1
    try:
        load(dict(tensors), storage_reader=FileSystemReader(directory), process_group=group, no_dist=alone)
    except CheckpointException as error:
        raise _plain_error(error, f"{directory}: the tensors could not be read") from error


def saved_tensors(directory: Path) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Name, shape and number format of every tensor of a verified checkpoint."""
    entries = FileSystemReader(directory).read_metadata().state_dict_metadata
    return {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def write_values(directory: Path, values: Mapping[str, Any], buffers: Mapping[str, Tensor]) -> None:
    """Write what one process writes for all."""
    from safetensors.torch import save_file

    (directory / VALUES_FILE).write_text(durable.json_text(values), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in buffers.items()}, str(directory / BUFFERS_FILE))


def read_values(directory: Path) -> dict[str, Any]:
    """The plain values of a verified checkpoint."""
    values: dict[str, Any] = json.loads((directory / VALUES_FILE).read_text(encoding="utf-8"))
    return values


def read_buffers(directory: Path, device: torch.device) -> dict[str, Tensor]:
    """The shared buffers of a verified checkpoint."""
    from safetensors.torch import load_file

    return dict(load_file(str(directory / BUFFERS_FILE), device=str(device)))


def files_of(directory: Path, ranks: Ranks) -> Sequence[str]:
    """The files of a checkpoint in writing that this process has to flush and hash."""
    names = files_under(directory)
    own = f"__{ranks.rank}_"
    return [name for name in names if name.startswith(own) or (ranks.is_first and not name.startswith("__"))]


def _expect_no_group() -> None:
    """One process without a process group is what Charter means, so torch need not warn of it."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")


def _plain_error(error: CheckpointException, what: str) -> Exception:
    """`CheckpointException` is not an `Exception`, so nothing would catch it; a full disk stays recognisable."""
    causes = [failure[0] for failure in error.failures.values()]
    full = next((cause for cause in causes if is_disk_full(cause)), None)
    if full is not None:
        return OSError(28, "No space left on device")
    return StageError(f"{what}: {'; '.join(f'{type(cause).__name__}: {cause}' for cause in causes)}")
