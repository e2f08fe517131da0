"""Language models: Hugging Face classes, made from an architecture or loaded from a directory."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from charter.artifacts.safetensors_file import check_weight_files
from charter.errors import DataError
from charter.models.chat import load_tokenizer, turn_end
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.models.runtime import checked_attention, seeded
from charter.models.sharded_load import empty_parameters, is_readable_in_parts
from charter.models.token_forward import give_token_forward
from charter.spec.architecture import Architecture

GENERATION_CONFIG = "generation_config.json"


@dataclass
class LanguageModel:
    """A causal language model with its tokenizer; weights in fp32."""

    model: Any
    tokenizer: Any
    source: Path | None = None
    """The directory from which a model without weights is filled once it is spread over processes (`parallelize`)."""

    def __post_init__(self) -> None:
        give_token_forward(self.model)

    @property
    def end_id(self) -> int:
        """The end-of-turn token: generation stops there."""
        return turn_end(self.tokenizer)

    @property
    def padding_id(self) -> int:
        """The padding token."""
        return int(self.tokenizer.pad_token_id)

    def save(self, path: Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write config, weights (safetensors) and tokenizer; `weights` are whole tensors of a model in parts.

        What shares its weights with others is written once, under the name that the class keeps.
        """
        path.mkdir(parents=True, exist_ok=True)
        twice = self.model.all_tied_weights_keys
        unique = None if weights is None else {name: value for name, value in weights.items() if name not in twice}
        self._stop_at_end()
        self.model.save_pretrained(str(path), state_dict=unique, safe_serialization=True)
        self.tokenizer.save_pretrained(str(path))

    def _stop_at_end(self) -> None:
        """Let servers of the saved model, which read `generation_config.json`, stop where generation here does."""
        settings = getattr(self.model, "generation_config", None)
        if settings is None or settings.eos_token_id is None:
            return
        stops = [settings.eos_token_id] if isinstance(settings.eos_token_id, int) else list(settings.eos_token_id)
        if self.end_id not in stops:
            settings.eos_token_id = [self.end_id, *stops]


def new_language_model(
    architecture: Architecture, tokenizer: Any, *, seed: int, attention: str = DEFAULT_ATTENTION
) -> LanguageModel:
    """A Llama-style model with fresh weights that only `seed` decides."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if architecture.model_type != "llama":
        raise DataError(
            f"training from scratch is for llama-style architectures, not {architecture.model_type!r}; "
            "leave model_type out, or start from a directory of weights"
        )
    if len(tokenizer) > architecture.vocab_size:
        raise DataError(f"the tokenizer has {len(tokenizer)} tokens, the model only {architecture.vocab_size}")
    config = LlamaConfig(
        vocab_size=architecture.vocab_size,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.num_layers,
        num_attention_heads=architecture.num_heads,
        num_key_value_heads=architecture.kv_heads,
        head_dim=architecture.head_size,
        max_position_embeddings=architecture.max_position_embeddings,
        tie_word_embeddings=architecture.tied_embeddings,
        rms_norm_eps=architecture.norm_eps,
        attention_bias=architecture.attention_bias,
        mlp_bias=architecture.mlp_bias,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation=checked_attention(attention),
    )
    with seeded(seed):
        model = LlamaForCausalLM(config)
    return LanguageModel(model=model.float(), tokenizer=tokenizer)


def check_model_directory(path: Path) -> None:
    """Refuse a path that is not a Hugging Face model directory, saying what is missing."""
    if not path.is_dir():
        raise DataError(f"{path}: no such model directory; give the directory that holds config.json")
    if not (path / "config.json").exists():
        listing = ", ".join(sorted(item.name for item in path.iterdir())[:8]) or "nothing"
        raise DataError(f"{path}: no config.json here (found {listing}); give a Hugging Face model directory")
    try:
        json.loads((path / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path / 'config.json'}: not valid JSON: {error}") from None
    check_weight_files(path)


def answering_dtype(device: torch.device) -> torch.dtype:
    """Return the number format of a model that only answers: 16 bits on an accelerator, as its memory is planned."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_language_model(
    path: Path, *, attention: str = DEFAULT_ATTENTION, dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """Load weights and tokenizer; a partial load (missing or unexpected weights) is refused."""
    from transformers import AutoModelForCausalLM

    check_model_directory(path)
    checked_attention(attention)
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            str(path),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            attn_implementation=attention,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot load the weights: {error}") from None
    wrong = sorted(report["missing_keys"]) + sorted(report["unexpected_keys"])
    if wrong:
        raise DataError(f"{path}: weights do not match config.json: {', '.join(wrong[:5])}")
    return LanguageModel(model=model, tokenizer=load_tokenizer(path))


def open_language_model(path: Path, *, attention: str = DEFAULT_ATTENTION, empty: bool) -> LanguageModel:
    """A model without weights where it is wanted `empty` and its files can be read in parts, else loaded whole."""
    if empty:
        model = empty_language_model(path, attention=attention)
        if is_readable_in_parts(model.model, path):
            return model
    return load_language_model(path, attention=attention)


def empty_language_model(path: Path, *, attention: str = DEFAULT_ATTENTION) -> LanguageModel:
    """The model and tokenizer of a directory without weights, to be filled once it is sharded (`parallelize`)."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    check_model_directory(path)
    config = AutoConfig.from_pretrained(str(path), local_files_only=True)
    with empty_parameters():
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=checked_attention(attention)
        )
    if (path / GENERATION_CONFIG).exists():
        model.generation_config = GenerationConfig.from_pretrained(str(path), local_files_only=True)
    return LanguageModel(model=model, tokenizer=load_tokenizer(path), source=path)


ATTENTION_DROPOUT = "attention_dropout"
"""What Hugging Face's attention modules call it."""


def set_dropout(model: nn.Module, probability: float) -> None:
    """Drop token embeddings and attention weights with `probability` in training mode; 0 changes nothing.

    Draws come from torch's global generator, which every optimizer step seeds (`runtime.seeded`).
    Source: Srivastava et al. 2014; embeddings and attention as in Vaswani et al. 2017, section 5.4.
    """
    if probability == 0:
        return
    embeddings = model.get_input_embeddings()  # type: ignore[operator]

    def drop(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.nn.functional.dropout(output, probability, training=module.training)

    embeddings.register_forward_hook(drop)
    for module in model.modules():
        if hasattr(module, ATTENTION_DROPOUT):
            setattr(module, ATTENTION_DROPOUT, probability)
