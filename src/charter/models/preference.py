"""Preference and value models: a language model's body with a scalar head.

Legend: B sequences, T tokens, N positions that are asked for, H hidden size.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charter.errors import DataError
from charter.models.context_split import RowParts
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.models.language_model import LanguageModel, check_model_directory, open_language_model
from charter.models.layer_passes import asked_hidden, without_look
from charter.models.sharded_load import read_weights

HEAD_FILE, HEAD_WEIGHTS = "charter_head.json", "charter_head.safetensors"


class ScalarModel(nn.Module):
    """The body of a language model with one number per token on top."""

    def __init__(self, language_model: LanguageModel, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = language_model.model.get_decoder()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(language_model.model.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        ids_BT: Tensor,
        mask_BT: Tensor | None = None,
        position_ids_BT: Tensor | None = None,
        *,
        at_N: Tensor | None = None,
        row_parts: RowParts | None = None,
    ) -> Tensor:
        """The head's value at every token, in fp32; a mask is needed only where padding comes before tokens.

        With `at_N`, the values at these positions alone, counted through all of B x T, each named once. With
        `row_parts` all of these are a process's own positions of rows that it shares with others.
        """
        inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": position_ids_BT}
        if row_parts is not None:
            inputs = row_parts.inputs({}, ids_BT)
        if at_N is None:
            hidden: Tensor = self.body(use_cache=False, **without_look(self.body, inputs), **inputs).last_hidden_state
        else:
            hidden = asked_hidden(self.body, at_N, inputs)
        values: Tensor = self.head(self.dropout(hidden)).squeeze(-1).float()
        return values


def pooled_positions(answer_mask_BT: Tensor, *, pooling: str) -> Tensor:
    """Return the positions of a sequence's score: the answer's last token (`last`), or all of the answer (`mean`).

    >>> pooled_positions(torch.tensor([[False, True, True, False]]), pooling="last").tolist()
    [[False, False, True, False]]
    """
    if pooling == "mean":
        return answer_mask_BT
    positions_T = torch.arange(answer_mask_BT.shape[1], device=answer_mask_BT.device)
    last_B1 = torch.where(answer_mask_BT, positions_T, 0).amax(1, keepdim=True)
    return positions_T == last_B1


def pool(value_N: Tensor, at_N: Tensor, read_BT: Tensor) -> Tensor:
    """One score per sequence: the mean of the values at its pooled positions, counted through all of B x T in `at_N`.

    >>> read_BT = torch.tensor([[False, True, True], [True, False, False]])
    >>> pool(torch.tensor([2.0, 4.0, 5.0]), torch.tensor([1, 2, 3]), read_BT).tolist()
    [3.0, 5.0]
    """
    values_BT = value_N.new_zeros(read_BT.numel()).index_copy(0, at_N, value_N).view(read_BT.shape)
    return values_BT.sum(1) / read_BT.sum(1).clamp_min(1)


class PreferenceModel:
    """A scalar model with what its scores mean: pooling, context, and the normalisation of its rewards."""

    def __init__(self, scalar: ScalarModel, language_model: LanguageModel, settings: dict[str, Any]) -> None:
        self.scalar = scalar
        self.language_model = language_model
        self.settings: dict[str, Any] = settings

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the body."""
        return self.language_model.tokenizer

    def normalise(self, score: Tensor) -> Tensor:
        """Scores shifted and scaled to mean 0 and deviation 1 on the model's own training pairs."""
        normalised: Tensor = (score - self.settings["score_mean"]) / self.settings["score_deviation"]
        return normalised

    def save(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write body, tokenizer, head and settings; `weights` are whole tensors of a scalar model in parts."""
        from safetensors.torch import save_file

        weights = self.scalar.state_dict() if weights is None else weights
        self.language_model.save(path, self._language_weights(weights))
        head = {
            name.removeprefix("head."): value.detach().cpu().contiguous()
            for name, value in weights.items()
            if name.startswith("head.")
        }
        save_file(head, str(path / HEAD_WEIGHTS))
        (path / HEAD_FILE).write_text(json.dumps(self.settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def _language_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The causal model's weights: the body's, and the output embeddings that no preference changes."""
        model = self.language_model.model
        prefix = f"{model.base_model_prefix}."
        body = {f"{prefix}{name[5:]}": value for name, value in weights.items() if name.startswith("body.")}
        rest = {name: value for name, value in model.state_dict().items() if not name.startswith(prefix)}
        if (source := self.language_model.source) is not None:
            rest |= read_weights(source, [name for name, value in rest.items() if value.is_meta])
        return {**rest, **body}


def load_preference_model(path: Path, *, attention: str = DEFAULT_ATTENTION, empty: bool = False) -> PreferenceModel:
    """Load body and head, the body without weights where it is wanted `empty`; without a head it is refused."""
    from safetensors.torch import load_file

    check_model_directory(path)
    if not (path / HEAD_FILE).exists():
        raise DataError(f"{path}: not a preference model (no {HEAD_FILE}); name a preference_model stage")
    language_model = open_language_model(path, attention=attention, empty=empty)
    scalar = ScalarModel(language_model)
    scalar.head.load_state_dict(load_file(str(path / HEAD_WEIGHTS)))
    settings = json.loads((path / HEAD_FILE).read_text(encoding="utf-8"))
    return PreferenceModel(scalar, language_model, settings)
