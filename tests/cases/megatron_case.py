"""Stages for Megatron-LM: Llama 3.1 8B on 16 accelerators unless told otherwise, every option within what it can do."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from charter.engines.common.request import Handover, HandoverPaths
from charter.spec.architecture import Architecture, MixtureOfExperts
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import PretrainStage, SftStage
from charter.spec.stage_base import StageResources

LLAMA = Architecture(
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    intermediate_size=14_336,
    vocab_size=128_256,
    max_position_embeddings=131_072,
    rope_theta=500_000.0,
    model_type="llama",
)
SMALL_LLAMA = replace(LLAMA, num_layers=16, hidden_size=2048, head_dim=64, intermediate_size=8192, tied_embeddings=True)
QWEN2 = replace(LLAMA, model_type="qwen2", attention_bias=True, rope_theta=1_000_000.0, vocab_size=152_064)
MISTRAL = replace(LLAMA, model_type="mistral", rope_theta=10_000.0, vocab_size=32_000, num_kv_heads=None)
QWEN3_MOE = replace(
    LLAMA,
    model_type="qwen3_moe",
    qk_norm=True,
    rope_theta=1_000_000.0,
    mixture=MixtureOfExperts(num_experts=128, experts_per_token=8, expert_intermediate_size=768),
)
SHARED_MOE = replace(
    QWEN3_MOE,
    mixture=MixtureOfExperts(
        num_experts=64,
        experts_per_token=4,
        expert_intermediate_size=1408,
        num_shared_experts=2,
        num_dense_layers=2,
        shared_expert_gate=True,
    ),
)
LAYOUT = Layout(
    data=2,
    tensor=4,
    pipeline=2,
    sequence_parallel=True,
    zero=ZeroStage.OPTIMIZER,
    micro_batch=2,
    accumulation=16,
    recompute=Recompute.SELECTIVE,
)
PATHS = HandoverPaths(work="/stage", models={"init": "/models/init"}, data={"data": "/data/data.jsonl"})
PRETRAIN = PretrainStage(init="base", data=("text",), global_batch=64, seq_len=8192, steps=1000, warmup_steps=50)
SFT = SftStage(init="base", data=("chat",), global_batch=64, seq_len=4096, epochs=2)


def handover(stage, layout=LAYOUT, *, model=LLAMA, **changes):
    """The stage on two nodes of 8, under the layout."""
    given = {
        "engine": "megatron",
        "run": "run",
        "name": "stage",
        "stage": stage,
        "seed": 7,
        "layout": layout,
        "num_nodes": 2,
        "per_node": 8,
        "accelerator": "H100",
        "target_steps": 1000,
        "architectures": {"init": model},
        "paths": PATHS,
    }
    return Handover(**(given | changes))


ACCEPTED = {
    "pretrain": handover(PRETRAIN),
    "pretrain, interleaved": handover(PRETRAIN, replace(LAYOUT, interleave=4)),
    "pretrain, context": handover(PRETRAIN, replace(LAYOUT, context=2, data=1, accumulation=32)),
    "pretrain, plain data parallelism": handover(
        replace(PRETRAIN, dtype="fp16", schedule="constant"),
        Layout(data=16, micro_batch=4),
    ),
    "pretrain, fp32 and offload": handover(
        replace(PRETRAIN, dtype="fp32", schedule="linear"),
        Layout(data=16, micro_batch=4, zero=ZeroStage.OPTIMIZER, offload_optimizer=True, recompute=Recompute.FULL),
    ),
    "pretrain, one node": handover(PRETRAIN, replace(LAYOUT, data=1, accumulation=32), num_nodes=1),
    "pretrain, small": handover(PRETRAIN, model=SMALL_LLAMA),
    "pretrain, qwen2": handover(PRETRAIN, model=QWEN2),
    "pretrain, mistral": handover(replace(PRETRAIN, resources=StageResources(attention="eager")), model=MISTRAL),
    "pretrain, experts": handover(
        PRETRAIN, Layout(data=16, expert=8, micro_batch=1, accumulation=4, zero=ZeroStage.OPTIMIZER), model=QWEN3_MOE
    ),
    "pretrain, shared experts": handover(PRETRAIN, replace(LAYOUT, expert=2), model=SHARED_MOE),
    "pretrain, 405B": handover(
        replace(PRETRAIN, global_batch=1024),
        replace(LAYOUT, data=4, tensor=8, pipeline=32, micro_batch=1, accumulation=256),
        model=replace(LLAMA, num_layers=126, hidden_size=16_384, num_heads=128, intermediate_size=53_248),
        num_nodes=128,
    ),
    "pretrain, fp8": handover(replace(PRETRAIN, dtype="fp8")),
    "pretrain, experts in fp8": handover(replace(PRETRAIN, dtype="fp8"), replace(LAYOUT, expert=2), model=SHARED_MOE),
    "pretrain, fp8 and offload": handover(
        replace(PRETRAIN, dtype="fp8"),
        Layout(data=16, micro_batch=4, zero=ZeroStage.OPTIMIZER, offload_optimizer=True, recompute=Recompute.FULL),
    ),
    "sft": handover(SFT),
    "sft, fp8": handover(replace(SFT, dtype="fp8")),
    "sft, flash": handover(replace(SFT, resources=StageResources(attention="flash_attention_2"))),
}
"""Name -> what Megatron-LM must accept."""


NUMBERS = {"int": int, "float": float}


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Options of one commit."""

    commit: str
    version: str
    options: Mapping[str, Mapping[str, Any]]


@cache
def recorded_schema() -> Schema:
    """Options of Megatron-LM's parser, as tools/engine_schemas/megatron_lm.py recorded them."""
    document = json.loads(files("charter.engines.megatron").joinpath("schema.json").read_text(encoding="utf-8"))
    return Schema(commit=document["commit"], version=document["version"], options=document["options"])


def refusals(words: Sequence[str], schema: Schema) -> Iterator[str]:
    """What the parser would refuse of a command line, told as it would tell it."""
    option, values = "", list[str]()
    for word in (*words, "--"):
        if not word.startswith("--"):
            values.append(word)
            continue
        if option:
            yield from _refused(option, values, schema)
        elif values:
            yield f"{values[0]!r} belongs to no option"
        option, values = word, []


def _refused(option: str, values: Sequence[str], schema: Schema) -> Iterator[str]:
    facts = schema.options.get(option)
    if facts is None:
        yield f"{option} is not known"
        return
    wanted = facts.get("nargs", 1)
    if not (values if wanted == "+" else wanted in ("*", "?") or len(values) == wanted):
        yield f"{option} takes {wanted} values, not {len(values)}"
    kind, choices = facts.get("type"), facts.get("choices")
    for value in values:
        if kind in NUMBERS and not _reads(value, kind):
            yield f"{option}: {value!r} is no {kind}"
        elif choices is not None and value not in [str(choice) for choice in choices]:
            yield f"{option}: {value!r} is none of {', '.join(map(str, choices))}"


def _reads(value: str, kind: str) -> bool:
    try:
        NUMBERS[kind](value)
    except ValueError:
        return False
    return True
