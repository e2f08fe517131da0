"""Engines that generate text: how they issue work, and what a name in a table or a configuration means."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Way in which a generation engine issues work; times are relative to the constants of `serving.constants`."""

    name: str
    eager: bool
    """Every operation is issued from Python at every step; else a step is a captured graph or compiled code."""
    continuous: bool
    """A finished sequence makes room at once; otherwise the batch waits for its longest answer."""
    label: str = ""
    """Short name of the stack whose fitted constants apply."""
    overlapped: bool = False
    """The host prepares the next step while the device works on this one (not across pipeline stages)."""
    paged: bool = True
    """Keys and values stay where they are; else the cache is copied and repeated for every head at each step."""
    layer_slowness: float = 1.0
    """Time to issue a layer, over the usual of its kind (eager, or captured)."""
    step_slowness: float = 1.0
    """Scheduling and sampling of one step, over the usual."""
    token_slowness: float = 1.0
    """Host time per generated token, over the usual."""
    tile_share: float = 1.0
    """Rows that a product pads to, over those of a library's kernels (less where one row is a vector product)."""
    most_sequences: int = 1024
    """Sequences it decodes together by default, whatever memory allows."""
    memory_share: float = 0.9
    """Of the device, that it takes for weights, cache and work space by default."""


NATIVE = Engine(name="native torch", eager=True, continuous=False, label="transformers", paged=False)
SERVER = Engine(name="serving engine (vLLM-like)", eager=False, continuous=True, label="vllm", most_sequences=256)
VLLM = SERVER
SGLANG = Engine(name="SGLang", eager=False, continuous=True, label="sglang", overlapped=True, memory_share=0.88)
TENSORRT = Engine(
    name="TensorRT-LLM",
    eager=False,
    continuous=True,
    label="tensorrt-llm",
    overlapped=True,
    most_sequences=2048,
    memory_share=0.93,
)
COMPILED = Engine(
    name="compiled loop (gpt-fast, llama.cpp)", eager=False, continuous=False, label="compiled", tile_share=1 / 16
)
"""Its kernels for few rows are vector products (llama.cpp's `mul_mat_vec_q`, ExLlama's, what a compiler makes of one
row; from memory), which pad nothing."""
TRANSFORMERS = Engine(
    name="transformers", eager=True, continuous=False, label="transformers", paged=False, most_sequences=64
)
LITGPT = Engine(name="litgpt", eager=True, continuous=False, label="litgpt", layer_slowness=1.2, most_sequences=64)
HYBRID = Engine(
    name="DeepSpeed (hybrid engine, inference kernels)",
    eager=False,
    continuous=False,
    label="deepspeed",
    layer_slowness=5.0,
    most_sequences=64,
)
FASTER_TRANSFORMER = Engine(
    name="FasterTransformer",
    eager=False,
    continuous=False,
    label="fastertransformer",
    step_slowness=0.3,
    token_slowness=0.2,
    most_sequences=128,
)

_NAMES: tuple[tuple[str, Engine], ...] = (
    (r"tensorrt|trt[- ]?llm|\btrt\b|\bnim\b", TENSORRT),
    (r"sglang|\bsgl\b", SGLANG),
    (r"vllm|aphrodite|\brouter\b", VLLM),
    (
        r"\btgi\b|text[- ]generation[- ]inference|lmdeploy|turbomind|lightllm|\bmlc\b|\bmax serve|jetstream|saxml|"
        r"neuron|\bmii\b|fastgen|\brtp",
        VLLM,
    ),
    (r"faster ?transformer", FASTER_TRANSFORMER),
    (r"deepspeed.*(chat|hybrid|inference)|hybrid engine", HYBRID),
    (r"litgpt|lit-gpt|lit-llama|lit-parrot", LITGPT),
    (r"gpt-fast|llama\.?cpp|ggml|gguf|ollama|exllama|torch\.?compile|ctransformers|\bmlx\b", COMPILED),
    (
        r"transformers|hugging ?face|\bhf\b|autogptq|auto-gptq|autoawq|bitsandbytes|peft|unsloth|accelerate|"
        r"eager|torch",
        TRANSFORMERS,
    ),
)


def engine_named(*texts: str) -> Engine | None:
    """The engine that the first telling text names, None when none does.

    >>> engine_named("TensorRT-LLM 1.0 (PyTorch backend)").label, engine_named("", "vLLM, batch 100").label
    ('tensorrt-llm', 'vllm')
    >>> engine_named("HF transformers (AutoGPTQ)").label, engine_named("something new")
    ('transformers', None)
    """
    for text in texts:
        lowered = text.casefold()
        for pattern, engine in _NAMES:
            if re.search(pattern, lowered):
                return engine
    return None
