"""From an engine's sequence-classification model with one label to a preference model that later stages load.

Such a model reads its score at the last token that is not padding, by a linear layer without bias: Charter's preference
model with `pooling: last`. The body is taken byte for byte; what the scores mean (their mean and deviation on the
training pairs) is measured as the native engine measures it.
"""

import json
from pathlib import Path
from typing import Any

import torch

from charter.artifacts.safetensors_file import read_header, write_tensors
from charter.engines.common.files import copy_beside
from charter.errors import StageError
from charter.hosted.weights import check_language_model
from charter.models.preference import HEAD_FILE, HEAD_WEIGHTS, load_preference_model
from charter.spec.stage import PreferenceModelStage
from charter.train.encoded_pairs import EncodedPairs
from charter.train.preference_model import score_statistics, stage_pairs
from charter.train.setup import Setup

SCORE = "score.weight"
_EMBEDDINGS = "lm_head."


def write_preference_model(plain: Path, source: Path, target: Path, setup: Setup, spec: PreferenceModelStage) -> None:
    """Write the preference model of a classification model in `plain`; the rest comes from `source`, where it began."""
    tensors = {name: item for path in sorted(plain.glob("*.safetensors")) for name, item in read_header(path).items()}
    if SCORE not in tensors or tensors[SCORE].shape[0] != 1:
        raise StageError(f"the engine has left no model with one score: {plain} has no {SCORE} of one row")
    before = {name: item for path in sorted(source.glob("*.safetensors")) for name, item in read_header(path).items()}
    body = {name: item for name, item in tensors.items() if name != SCORE}
    embeddings = {name: item for name, item in before.items() if name.startswith(_EMBEDDINGS)}
    copy_beside(source, target)
    write_tensors(target / "model.safetensors", {**embeddings, **body})
    _write_head(plain, target)
    settings: dict[str, Any] = {"pooling": "last", "context": spec.context, "seq_len": spec.seq_len}
    _write_settings(target, {**settings, "score_mean": 0.0, "score_deviation": 1.0})
    check_language_model(target, beside=(HEAD_WEIGHTS,))
    model = load_preference_model(target)
    pairs = EncodedPairs(model, stage_pairs(setup, spec))
    mean, deviation = score_statistics(model, pairs, dtype=spec.dtype, tell=setup.stage.alive)
    _write_settings(target, {**settings, "score_mean": mean, "score_deviation": deviation})


def _write_head(plain: Path, target: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for path in sorted(plain.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            if SCORE in file.keys():  # noqa: SIM118 (no mapping)
                weight = file.get_tensor(SCORE).float().contiguous()
    if not bool(weight.isfinite().all()):
        raise StageError(f"the weights that the engine has left are no model: {SCORE} is not finite")
    save_file({"weight": weight, "bias": torch.zeros(1)}, str(target / HEAD_WEIGHTS))


def _write_settings(target: Path, settings: dict[str, Any]) -> None:
    (target / HEAD_FILE).write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")
