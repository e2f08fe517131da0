"""The subjects measured: models of random weights on the device, a setup without directory, texts of exact length."""

import random
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from charter.data.dataset import Turn
from charter.models.adapters import add_adapter
from charter.models.engine_layout import StageLayout
from charter.models.language_model import LanguageModel
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.ranks import Ranks
from charter.spec.layout import Adapter
from charter.spec.stage_base import Dtype
from charter.train.meter import Meter
from charter.train.setup import Setup

from .grid import PURE, Case

CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
PADDING, END, FIRST_WORD = 0, 1, 2


class NumberTokenizer:
    """Token ids written as numbers, so that a text has exactly as many tokens as it has words."""

    pad_token_id, eos_token_id, eos_token = PADDING, END, str(END)

    def __call__(self, text: str, *, add_special_tokens: bool = False) -> dict[str, list[int]]:
        """The ids of a text."""
        return {"input_ids": list(_ids(text))}

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool = False
    ) -> str:
        """Contents one after the other; a finished answer ends with the end token."""
        text = " ".join(message["content"] for message in messages)
        return text + " " if add_generation_prompt else f"{text} {END}"

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some ids."""
        return " ".join(map(str, ids))


@cache
def _ids(text: str) -> tuple[int, ...]:
    """Kept, since a text is read again in every step and the time to parse it is no part of a step."""
    return tuple(int(word) for word in text.split())


def token_ids(count: int, vocabulary: int, seed: int) -> list[int]:
    """Random ids, none of them special."""
    draw = random.Random(seed)
    return [draw.randrange(FIRST_WORD, vocabulary) for _ in range(count)]


def text_of(count: int, vocabulary: int, seed: int) -> str:
    """A text of `count` tokens."""
    return " ".join(map(str, token_ids(count, vocabulary, seed)))


def question(count: int, vocabulary: int, seed: int) -> tuple[Turn, ...]:
    """One user turn of `count` tokens."""
    return (Turn("user", text_of(count, vocabulary, seed)),)


def weight_dtype(case: Case) -> torch.dtype:
    """fp32 where autocast computes in bf16, as the engine keeps weights; bf16 in the pure setting."""
    return torch.bfloat16 if case.precision == PURE else torch.float32


def stage_dtype(case: Case) -> Dtype:
    """The stage's `dtype`: autocast only over fp32 weights."""
    return "fp32" if case.precision == PURE else "bf16"


def language_model(case: Case, device: torch.device) -> LanguageModel:
    """A Hugging Face model of the case's shape with random weights, made on the device."""
    a = case.architecture
    config_class, model_class = CLASSES[a.model_type]
    config = config_class(
        vocab_size=a.vocab_size,
        hidden_size=a.hidden_size,
        intermediate_size=a.intermediate_size,
        num_hidden_layers=a.num_layers,
        num_attention_heads=a.num_heads,
        num_key_value_heads=a.kv_heads,
        head_dim=a.head_size,
        max_position_embeddings=max(a.max_position_embeddings, case.seq),
        tie_word_embeddings=a.tied_embeddings,
        pad_token_id=PADDING,
        eos_token_id=END,
        bos_token_id=END,
    )
    with torch.device(device):
        model = model_class._from_config(config, dtype=weight_dtype(case), attn_implementation="sdpa")
    return LanguageModel(model=model.to(device), tokenizer=NumberTokenizer())


def preference_model(case: Case, device: torch.device) -> PreferenceModel:
    """A body with a scalar head; the engine leaves the unused output projection in host memory, here it is dropped."""
    base = language_model(case, device)
    scalar = ScalarModel(base)
    scalar.head.to(device=device, dtype=weight_dtype(case))
    base.model.lm_head = nn.Identity()
    settings: dict[str, Any] = {"pooling": "last", "context": "full", "seq_len": case.seq}
    return PreferenceModel(scalar, base, settings | {"score_mean": 0.0, "score_deviation": 1.0})


def setup_of(spec: Any, device: torch.device, meter: Meter, *, micro_batch: int = 0, recompute: bool = False) -> Setup:
    """A stage's setup without a directory: what its steps need, and no checkpoints, heartbeat or metrics."""
    job = SimpleNamespace(seed=1, stage="measured", spec=spec)
    stage: Any = SimpleNamespace(job=job, alive=lambda: None)
    layout = StageLayout(micro_batch=micro_batch, recompute="full" if recompute else "none")
    return Setup(stage=stage, ranks=Ranks(device=device), layout=layout, meter=meter)


def add_lora(model: LanguageModel, rank: int) -> None:
    """The engine's adapters on every projection of the layers; the output projection stays as it is."""
    add_adapter(model.model, Adapter(rank=rank), seed=1)
