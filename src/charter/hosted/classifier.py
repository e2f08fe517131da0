"""The models of a stage as directories that an engine reads; a preference model as a classifier with one label.

A classifier's score is the normalised reward but for a constant: its last layer has no bias, so the head is divided by
the deviation of the scores and the mean is left out. Methods that compare the answers to one prompt do not see it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.job import Job
from charter.artifacts.safetensors_file import read_header, write_tensors
from charter.data.dataset import Turn
from charter.engines.common.files import CONFIG, copy_beside
from charter.errors import DataError
from charter.launch.handing_over import architecture_of, model_roles
from charter.models.chat import load_tokenizer
from charter.models.language_model import check_model_directory
from charter.models.preference import HEAD_FILE, HEAD_WEIGHTS
from charter.spec.architecture import Architecture
from charter.train.models import starting_model

SCORE = "score.weight"
_EMBEDDINGS = "lm_head."


def is_preference_model(path: Path) -> bool:
    """Return True if a directory holds a preference model of Charter's."""
    return (path / HEAD_FILE).is_file()


def write_classifier(source: Path, target: Path) -> None:
    """Write the classifier of a preference model; one that averages over the answer has none."""
    from safetensors.torch import load_file, save_file

    settings = settings_of(source)
    if settings["pooling"] != "last":
        raise DataError(
            f"{source} reads its score as the {settings['pooling']} over the answer; other engines read it at the last "
            "token\n  train the preference model with `pooling: last`, or compute this stage with `engine: native`"
        )
    copy_beside(source, target)
    paths = [path for path in sorted(source.glob("*.safetensors")) if path.name != HEAD_WEIGHTS]
    body = {name: item for path in paths for name, item in read_header(path).items()}
    write_tensors(
        target / "model-00001-of-00002.safetensors",
        {name: item for name, item in body.items() if not name.startswith(_EMBEDDINGS)},
    )
    score = load_file(str(source / HEAD_WEIGHTS))["weight"] / settings["score_deviation"]
    save_file({SCORE: score.contiguous()}, str(target / "model-00002-of-00002.safetensors"), metadata={"format": "pt"})
    _write_index(target)
    _write_config(source, target)


def settings_of(path: Path) -> dict[str, Any]:
    """Return the settings that say what the scores of a preference model mean."""
    settings: dict[str, Any] = json.loads((path / HEAD_FILE).read_text(encoding="utf-8"))
    return settings


def check_prompts(reward: Path, prompts: Sequence[Sequence[Turn]]) -> None:
    """Refuse conversations of several turns where the preference model reads the last one only."""
    if not is_preference_model(reward) or settings_of(reward)["context"] != "last_turn":
        return
    longer = sum(len(turns) > 1 for turns in prompts)
    if longer:
        raise DataError(
            f"{longer} of {len(prompts)} prompts have several turns, and the preference model reads the last one only "
            "(`context: last_turn`), which this engine cannot do\n  train it with `context: full`, take prompts of one "
            "turn, or compute this stage with `engine: native`"
        )


def _write_index(target: Path) -> None:
    files = {path.name: read_header(path) for path in sorted(target.glob("*.safetensors"))}
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    total = sum(item.size_bytes for tensors in files.values() for item in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")


def _write_config(source: Path, target: Path) -> None:
    from charter.models.chat import load_tokenizer

    config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    names = [name.replace("ForCausalLM", "ForSequenceClassification") for name in config.get("architectures") or ()]
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    padding = load_tokenizer(source).pad_token_id
    config |= {"architectures": names, "pad_token_id": padding, **labels}
    (target / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


MODELS = "models"


@dataclass(frozen=True, kw_only=True)
class StageModels:
    """Directories of the models, by role, and the tokenizer of the one that is trained."""

    directories: Mapping[str, Path]
    architectures: Mapping[str, Architecture]
    tokenizer: Any


def stage_models(job: Job, work: Path) -> StageModels:
    """The models of a job; one that is only described is made with fresh weights, as the native engine makes it."""
    directories, architectures = {}, {}
    for role, item in model_roles(job).items():
        if item.model is not None and item.model.architecture is not None:
            directories[role] = work / MODELS / role
            starting_model(job, role=role).save(directories[role])
        else:
            directories[role] = item.location()
            check_model_directory(directories[role])
            if is_preference_model(directories[role]):
                write_classifier(directories[role], work / MODELS / role)
                directories[role] = work / MODELS / role
        architectures[role] = architecture_of(item, directories[role])
    trained = directories.get("policy") or directories["init"]
    return StageModels(directories=directories, architectures=architectures, tokenizer=load_tokenizer(trained))
