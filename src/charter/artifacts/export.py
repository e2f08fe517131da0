"""A finished stage's model as a plain Hugging Face directory, checked by hash before and after.

A language model is copied file by file. A preference model becomes the `...ForSequenceClassification` of its family:
the head's weights go in as `score.weight`, the language model's own head is left out, and not one byte of any other
tensor changes. Those classes have no bias in the head and know no normalisation, so both are returned, to be said.
"""

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.file_facts import files_under, sha256_file
from charter.artifacts.record import OUTPUTS, Record, damaged_output
from charter.artifacts.safetensors_file import StoredTensor, differing_tensors, read_header, write_tensors
from charter.errors import DataError

MODEL, CONFIG, INDEX = "model", "config.json", "model.safetensors.index.json"
HEAD_SETTINGS, HEAD_WEIGHTS = "charter_head.json", "charter_head.safetensors"
SCORE = "score.weight"
_CAUSAL, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"


@dataclass(frozen=True, kw_only=True)
class ScoreMeaning:
    """Way from an exported preference model's output (its `logits`) to its score."""

    pooling: str
    bias: float
    mean: float
    deviation: float


def check_outputs(stage_dir: Path, record: Record) -> None:
    """Refuse to export outputs that are not as they were recorded, or hold no model."""
    if not any(name.startswith(f"{MODEL}/") for name in record.outputs):
        raise DataError(f"stage {record.stage} ({record.kind}) made no model; export a stage that trains one")
    if (wrong := damaged_output(stage_dir, record, thorough=True)) is not None:
        raise DataError(f"stage {record.stage}: outputs damaged: {wrong}\n  `charter run` publishes them again")


def copy_model(stage_dir: Path, record: Record, target: Path) -> ScoreMeaning | None:
    """Fill an empty directory with the model; what its score means where it is a preference model."""
    source = stage_dir / OUTPUTS / MODEL
    if (source / HEAD_SETTINGS).exists():
        return _copy_preference_model(source, target)
    for relative in files_under(source):
        _copy(source / relative, target / relative)
        if sha256_file(target / relative) != record.outputs[f"{MODEL}/{relative}"]:
            raise DataError(f"{relative} changed while it was copied; check the disk and export again")
    return None


def _copy_preference_model(source: Path, target: Path) -> ScoreMeaning:
    config = _classifier_config(json.loads((source / CONFIG).read_text(encoding="utf-8")), source)
    weights = [name for name in files_under(source) if name.endswith(".safetensors") and name != HEAD_WEIGHTS]
    for relative in files_under(source):
        if relative not in {*weights, CONFIG, INDEX, HEAD_WEIGHTS}:
            _copy(source / relative, target / relative)
    (target / CONFIG).write_text(durable.json_text(config), encoding="utf-8")
    head = read_header(source / HEAD_WEIGHTS)
    places: dict[str, str] = {}
    for relative in weights:
        tensors = {name: item for name, item in read_header(source / relative).items() if not _is_language_head(name)}
        if relative == weights[-1]:
            tensors[SCORE] = head["weight"]
        write_tensors(target / relative, tensors)
        places |= dict.fromkeys(tensors, relative)
    if len(weights) > 1:
        total_size = sum(item.size_bytes for name in weights for item in read_header(target / name).values())
        index = {"metadata": {"total_size": total_size}, "weight_map": places}
        (target / INDEX).write_text(durable.json_text(index), encoding="utf-8")
    changed = differing_tensors([source / name for name in weights], [target / name for name in weights])
    if changed or read_header(target / weights[-1])[SCORE].read() != head["weight"].read():
        raise DataError(f"{', '.join(changed) or SCORE} changed while it was copied; check the disk and export again")
    settings = json.loads((source / HEAD_SETTINGS).read_text(encoding="utf-8"))
    return _meaning(settings, head["bias"])


def _is_language_head(name: str) -> bool:
    return name.startswith("lm_head.")


def _classifier_config(config: dict[str, Any], source: Path) -> dict[str, Any]:
    named = [str(name) for name in config.get("architectures") or ()]
    if len(named) != 1 or not named[0].endswith(_CAUSAL):
        raise DataError(f"{source / CONFIG}: cannot make a classifier of {', '.join(named) or 'no architecture'}")
    if config.get("pad_token_id") is None:
        raise DataError(f"{source / CONFIG} names no pad_token_id, by which the last token is found")
    return {
        **config,
        "architectures": [named[0].removesuffix(_CAUSAL) + _CLASSIFIER],
        "num_labels": 1,
        "id2label": {"0": "score"},
        "label2id": {"score": 0},
    }


def _meaning(settings: Mapping[str, Any], bias: StoredTensor) -> ScoreMeaning:
    if bias.dtype != "F32":
        raise DataError(f"{bias.file}: the head's bias is {bias.dtype}, where F32 is expected")
    return ScoreMeaning(
        pooling=str(settings["pooling"]),
        bias=struct.unpack("<f", bias.read())[0],
        mean=float(settings["score_mean"]),
        deviation=float(settings["score_deviation"]),
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
