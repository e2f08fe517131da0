"""The models of a stage as directories that an engine reads; a preference model as a classifier with one label.

A classifier's score is the normalised reward but for a constant: its last layer has no bias, so the head is divided by
the deviation of the scores and the mean is left out. Methods that compare the answers to one prompt do not see it.

Then the weights that an engine has left: headers that fit, every tensor there, of its shape, and finite; an adapter
that lies apart is merged into the plain weights it belongs to. peft names a matrix
`base_model.model.MODULE.lora_A.weight`, and what else was trained `base_model.model.MODULE.weight`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charter.artifacts.job import Job
from charter.artifacts.safetensors_file import check_weight_files, read_header, write_tensors
from charter.data.dataset import Turn
from charter.engines.common.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG, copy_beside
from charter.engines.common.request import Handover
from charter.errors import DataError, StageError
from charter.launch.handing_over import architecture_of, model_roles
from charter.models.adapters import product
from charter.models.chat import load_tokenizer
from charter.models.language_model import (
    LanguageModel,
    check_model_directory,
    empty_language_model,
    load_language_model,
)
from charter.models.preference import HEAD_FILE, HEAD_WEIGHTS
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.stage import PreferenceModelStage
from charter.train.models import ADAPTER, starting_model

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


def check_language_model(directory: Path, *, beside: Collection[str] = ()) -> None:
    """Raise a `StageError` with what is wrong with a language model's weights; `beside` names other weight files."""
    try:
        check_weight_files(directory)
        wrong = _wrong(directory, [path for path in sorted(directory.glob("*.safetensors")) if path.name not in beside])
    except DataError as error:
        raise StageError(f"the weights that the engine has left are damaged: {error}") from None
    if wrong:
        more = f" and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise StageError(f"the weights that the engine has left are no model: {'; '.join(wrong[:_MOST_SHOWN])}{more}")


def _wrong(directory: Path, files: Sequence[Path]) -> list[str]:
    return _differences(files, empty_language_model(directory).model) or _not_finite(files)


def _differences(files: Sequence[Path], model: Any) -> list[str]:
    """Tensors that are missing, unknown, or of another shape than the configuration says."""
    shapes = {name: item.shape for path in files for name, item in read_header(path).items()}
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tied = set(model.all_tied_weights_keys)
    wrong = [f"{name} is missing" for name in sorted(wanted.keys() - shapes.keys() - tied)]
    wrong += [f"{name} belongs to no layer" for name in sorted(shapes.keys() - wanted.keys())]
    for name in sorted(shapes.keys() & wanted.keys()):
        if shapes[name] != wanted[name]:
            wrong.append(f"{name} has the shape {list(shapes[name])}, not {list(wanted[name])}")
    return wrong


def _not_finite(files: Sequence[Path]) -> list[str]:
    """Tensors with numbers that are not finite, read one at a time."""
    from safetensors import safe_open

    wrong = []
    for path in files:
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                tensor = file.get_tensor(name)
                if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                    wrong.append(f"{name} is not finite")
    return wrong


SCORE = "score.weight"
_PREFIX = "base_model.model."
_BASE_MODEL = "base_model_name_or_path"
_PLAIN = {
    "use_rslora": False, "use_dora": False, "lora_bias": False, "fan_in_fan_out": False, "bias": "none",
    "rank_pattern": {}, "alpha_pattern": {},
}  # fmt: skip
"""Settings of peft that would make the product another one."""
_MOST_SHOWN = 5


def write_merged(directory: Path, handover: Handover, adapter: Adapter, target: Path) -> Mapping[str, object]:
    """Write the weights of a stage whose engine has left an adapter in `directory`; returns what is recorded of it."""
    first = Path(handover.paths.trained)
    write = write_merged_classifier if isinstance(handover.stage, PreferenceModelStage) else write_merged_model
    write(directory, first, adapter, target)
    return {"merged": {"rank": adapter.rank, "alpha": adapter.alpha}}


def write_merged_model(directory: Path, source: Path, adapter: Adapter, target: Path) -> None:
    """Write a language model with its adapter added in, and the adapter beside it, as the native engine does."""
    model, _ = merged(directory, source, adapter)
    model.save(target)
    _copy_adapter(directory, target.parent / ADAPTER)


def write_merged_classifier(directory: Path, source: Path, adapter: Adapter, target: Path) -> None:
    """Write the language model that is the body of a classifier, its adapter added in, and the classifier's score."""
    from safetensors.torch import save_file

    model, head = merged(directory, source, adapter, beside=(SCORE,))
    model.save(target)
    save_file(head, str(target / "score.safetensors"))


def merged(
    directory: Path, source: Path, adapter: Adapter, *, beside: Collection[str] = ()
) -> tuple[LanguageModel, dict[str, Tensor]]:
    """The language model in `source` with `alpha / rank * B A` added to every linear layer but the output projection.

    `beside` names tensors that were trained whole, such as a head, which are returned. A `StageError` says where the
    files in `directory` are no such adapter of this model.
    """
    _check_settings(directory / ADAPTER_CONFIG, adapter)
    try:
        model = load_language_model(source)
    except DataError as error:
        raise StageError(f"the model that the adapter belongs to cannot be read: {error}") from None
    matrices = _matrices(directory / ADAPTER_WEIGHTS)
    untouched = {name: matrices.pop(name) for name in beside if name in matrices}
    wrong = [] if len(untouched) == len(beside) else [f"{name} is missing" for name in sorted({*beside} - {*untouched})]
    with torch.no_grad():
        for name, layer in _adapted(model.model).items():
            wrong += _add(layer, name, matrices, adapter)
    wrong += [f"{name} belongs to no linear layer" for name in sorted(matrices)]
    if wrong:
        more = f" and {len(wrong) - _MOST_SHOWN} more" if len(wrong) > _MOST_SHOWN else ""
        raise StageError(
            f"the adapter that the engine has left is none of {source}: {'; '.join(wrong[:_MOST_SHOWN])}{more}"
        )
    return model, untouched


def _copy_adapter(directory: Path, target: Path) -> None:
    """Write an adapter as later readers find it; neither the order of a set nor a path of this machine is kept."""
    target.mkdir(parents=True, exist_ok=True)
    settings = {
        name: sorted(value) if name == "target_modules" else value
        for name, value in _settings(directory / ADAPTER_CONFIG).items()
    }
    text = json.dumps({**settings, _BASE_MODEL: None, "inference_mode": True}, indent=2, sort_keys=True)
    (target / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")
    (target / ADAPTER_WEIGHTS).write_bytes((directory / ADAPTER_WEIGHTS).read_bytes())


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StageError(f"the engine has left no adapter: {path} cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise StageError(f"the engine has left no adapter: {path} holds no settings")
    return settings


def _check_settings(path: Path, adapter: Adapter) -> None:
    settings = _settings(path)
    wanted = {"peft_type": "LORA", "r": adapter.rank, "lora_alpha": adapter.alpha}
    wrong = [
        f"{name} {settings.get(name)!r}, not {value!r}" for name, value in wanted.items() if settings.get(name) != value
    ]
    wrong += [f"{name} {settings[name]!r}" for name, value in _PLAIN.items() if (settings.get(name) or value) != value]
    if wrong:
        raise StageError(f"the engine has left another adapter than was asked for: {path} has {', '.join(wrong)}")


def _matrices(path: Path) -> dict[str, Tensor]:
    """Its tensors in fp32, by the names of the model's own modules."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored: Mapping[str, Tensor] = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise StageError(f"the engine has left no adapter: {path} cannot be read: {error}") from None
    if damaged := [name for name, value in stored.items() if not bool(value.isfinite().all())]:
        raise StageError(f"the adapter that the engine has left is damaged: {sorted(damaged)[0]} is not finite")
    return {name.removeprefix(_PREFIX): value.float() for name, value in stored.items()}


def _adapted(model: Any) -> dict[str, nn.Linear]:
    """The layers that peft's `all-linear` means."""
    output = model.get_output_embeddings()
    return {name: item for name, item in model.named_modules() if isinstance(item, nn.Linear) and item is not output}


def _add(layer: nn.Linear, name: str, matrices: dict[str, Tensor], adapter: Adapter) -> list[str]:
    """Add one product to its layer's weight; what is wrong with its matrices instead."""
    names = [f"{name}.lora_{which}.weight" for which in "AB"]
    first, second = (matrices.pop(item, None) for item in names)
    if first is None or second is None:
        return [f"{item} is missing" for item, value in zip(names, (first, second), strict=True) if value is None]
    rows, columns = layer.weight.shape
    shapes = (tuple(first.shape), tuple(second.shape))
    if shapes != ((adapter.rank, columns), (rows, adapter.rank)):
        return [f"{name} of shape {[rows, columns]} has matrices of shape {list(shapes[0])} and {list(shapes[1])}"]
    layer.weight += product(first, second, adapter)
    return []
