"""Files of an engine: whose work directory it is, links, moves, logs, and models put together from its weights."""

import errno
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from charter.artifacts import durable
from charter.artifacts.fingerprint import files_under
from charter.errors import DataError, StageError

Read = TypeVar("Read")
OWNER, PROCESSES = "owner.json", "processes"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV)


def owner_of(work: Path) -> Mapping[str, Any]:
    """Return the engine that has worked there, and since which start of the machine; empty where nothing says so."""
    try:
        owner = durable.read_json(work / OWNER)
    except DataError:
        return {}
    return owner if isinstance(owner, dict) else {}


def processes_in(work: Path) -> int:
    """Return the number of processes of the engine that works there."""
    return int(owner_of(work).get(PROCESSES, 1))


def link_tree(source: Path, target: Path, *, without: tuple[str, ...] = ()) -> None:
    """Give every file below a directory a second name below another one; `without` are names at its top."""
    for relative in files_under(source):
        if relative not in without:
            link_file(source / relative, target / relative)


def link_file(source: Path, target: Path) -> None:
    """Give one file a second name, or copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def move_to(directory: Path, path: Path) -> None:
    """Move a directory below another one, whose other content is removed."""
    directory.mkdir(exist_ok=True)
    for older in list(directory.iterdir()):
        shutil.rmtree(older, ignore_errors=True)
    path.rename(directory / path.name)


_COLOUR = re.compile(r"\x1b\[[\d;]*m")


def without_colours(line: str) -> str:
    """Return a line that was printed for a terminal as plain text."""
    return _COLOUR.sub("", line)


def read_log(log: Path, read: Callable[[Iterable[str]], Iterator[Read]]) -> Iterator[Read]:
    """Yield what `read` makes of the lines of a log; nothing where there is no log yet."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            yield from read(lines)
    except OSError:
        return


def numbered_steps(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """Return the steps whose directories are there, with them, in order; none where there is no directory."""
    try:
        paths = [path for path in directory.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return []
    numbers = ((path.name.removeprefix(prefix), path) for path in paths)
    return sorted((int(number), path) for number, path in numbers if number.isdecimal())


def read_number(path: Path) -> int:
    """Return the whole number that a file holds; 0 where there is none, or it is torn."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


RANK_FILES = ("model", "optim", "extra_state")


def fsdp_ranks(directory: Path) -> int:
    """Return the processes whose shards verl or SkyRL wrote there to their ends; 0 where one is not whole."""
    world = int(json.loads((directory / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    json.loads((directory / "huggingface" / CONFIG).read_text(encoding="utf-8"))
    names = [f"{kind}_world_size_{world}_rank_{rank}.pt" for kind in RANK_FILES for rank in range(world)]
    return world if all(zipfile.is_zipfile(directory / name) for name in names) else 0


CONFIG = "config.json"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Of peft."""
_BESIDE = (
    CONFIG, "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*",
    "merges.txt", "chat_template*", "*.model",
)  # fmt: skip
"""Training changes none of these. They are taken from the model that it began with: engines write paths, versions and
settings of the training itself (`use_cache`) into theirs."""


def write_model(weights: Sequence[Path], directory: Path, source: Path, target: Path) -> None:
    """Put trained weights, and the index beside them, together with configuration and tokenizer of the first model."""
    if not weights:
        raise StageError(f"{directory} has no weights in safetensors files")
    target.mkdir(parents=True, exist_ok=True)
    for path in [*weights, *sorted(directory.glob("*.safetensors.index.json"))]:
        link_file(path, target / path.name)
    copy_beside(source, target)


def converted_weights(command: Sequence[str], tool: str, directory: Path) -> list[Path]:
    """Run a command of an engine that writes a model into a directory beside its files, and return the weights."""
    shutil.rmtree(directory, ignore_errors=True)
    ended = subprocess.run(command, cwd=directory.parent, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise StageError(f"{tool} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    return sorted(directory.glob("*.safetensors"))


def write_saved_model(directory: Path, source: Path, target: Path) -> None:
    """Put a model that an engine saved as a hub has it together with configuration and tokenizer of the first one."""
    if next(directory.glob("adapter_*"), None) is not None:
        raise StageError(f"{directory} holds an adapter alone; merge it with peft before it is used")
    write_model(sorted(directory.glob("*.safetensors")), directory, source, target)


def copy_beside(source: Path, target: Path) -> None:
    """Everything of a model but its weights."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in _BESIDE:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                (target / path.name).write_bytes(path.read_bytes())
