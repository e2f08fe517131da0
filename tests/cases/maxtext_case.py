"""Stages for MaxText: Llama 3.1 8B on 64 chips of TPU v5p unless told otherwise, every option within what it can do."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from charter.catalog import models
from charter.engines.common.request import Handover, HandoverPaths
from charter.engines.maxtext.mapping import recorded
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import PretrainStage, SftStage
from charter.spec.stage_base import StageResources

LLAMA = models.get("Llama-3.1-8B").architecture
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
QWEN2 = models.get("Qwen2.5-7B").architecture
QWEN3 = models.get("Qwen3-8B").architecture
LAYOUT = Layout(data=64, zero=ZeroStage.PARAMETERS, micro_batch=2, accumulation=2)
PATHS = HandoverPaths(work="/stage", models={"init": "/models/init"}, data={"data": "/data/data.parquet"})
PRETRAIN = PretrainStage(init="base", data=("text",), global_batch=256, seq_len=8192, steps=1000, warmup_steps=50)
SFT = SftStage(init="base", data=("chat",), global_batch=256, seq_len=4096, epochs=2, warmup_steps=30)


def handover(stage, layout=LAYOUT, *, model=LLAMA, **changes):
    """The stage on 16 hosts of 4 chips, under the layout."""
    given = {
        "engine": "maxtext",
        "run": "run",
        "name": "stage",
        "stage": stage,
        "seed": 7,
        "layout": layout,
        "num_nodes": 16,
        "per_node": 4,
        "accelerator": "TPU-v5p",
        "target_steps": 1000,
        "architectures": {"init": model},
        "paths": PATHS,
    }
    return Handover(**(given | changes))


ACCEPTED = {
    "pretrain": handover(PRETRAIN),
    "pretrain, plain data parallelism": handover(
        replace(PRETRAIN, schedule="constant"), replace(LAYOUT, zero=ZeroStage.NONE, recompute=Recompute.FULL)
    ),
    "pretrain, fp32": handover(replace(PRETRAIN, dtype="fp32", schedule="linear")),
    "pretrain, copies within a slice": handover(PRETRAIN, replace(LAYOUT, replicas=4)),
    "pretrain, a copy on each of three slices": handover(
        replace(PRETRAIN, global_batch=384), replace(LAYOUT, data=96, replicas=3), num_nodes=24
    ),
    "pretrain, experts": handover(PRETRAIN, replace(LAYOUT, expert=8), model=MIXTRAL),
    "pretrain, seventh generation": handover(PRETRAIN, accelerator="TPU7x"),
    "sft": handover(SFT),
    "sft, one host": handover(
        SFT, replace(LAYOUT, data=8, accumulation=16), num_nodes=1, per_node=8, accelerator="TPU-v6e"
    ),
    "sft, qwen2": handover(replace(SFT, schedule="linear"), model=QWEN2),
    "sft, qwen3, eager": handover(replace(SFT, resources=StageResources(attention="eager")), model=QWEN3),
}
"""Name -> what MaxText must accept."""
PLAIN: Mapping[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "list": (list,), "dict": (dict,),
    "None": (type(None),),
}  # fmt: skip


def refusals(values: Mapping[str, Any]) -> Iterator[str]:
    """What its classes would refuse of a file: keys, types, choices and bounds, as they were recorded."""
    keys = recorded()["keys"]
    for key, value in values.items():
        facts = keys.get(key)
        if facts is None:
            yield f"{key} is not known"
            continue
        types = tuple(kind for word in facts["types"] if word != "any" for kind in PLAIN[word])
        fits = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        if not fits and "any" not in facts["types"] and value not in facts.get("choices", ()):
            yield f"{key}: {value!r} is none of {facts.get('choices') or facts['types']}"
        elif fits and not facts.get("ge", value) <= value <= facts.get("le", value):
            yield f"{key}: {value!r} is out of bounds"
