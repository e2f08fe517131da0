"""Weights that an engine has trained, with the rest of the model that they began as: a directory that stages load."""

from collections.abc import Sequence
from pathlib import Path

from charter.engines.common.files import link_file
from charter.errors import StageError

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


def copy_beside(source: Path, target: Path) -> None:
    """Everything of a model but its weights."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in _BESIDE:
        for path in sorted(source.glob(pattern)):
            if path.is_file():
                (target / path.name).write_bytes(path.read_bytes())
