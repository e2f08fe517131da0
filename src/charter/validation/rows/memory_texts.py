"""Words of a row's unit and notes about its memory, which fill typed columns that are blank."""

import re

_PROBES = (
    (r"nvidia-smi|nvml|gpustat", "nvidia_smi"),
    (r"\breserved|max_memory_reserved|max_reserved", "reserved"),
    (r"\bactive\b", "active"),
    (r"allocated|maxmemalloc|max_alloc", "allocated"),
)
"""Words for counters of memory; a plan's peak is that of `nvidia_smi`: reserved, with the CUDA context."""
_HELD = (
    (r"\(emb\)|modules_to_save|embedding.{0,20}train", "ends"),
    (r"adapter[_ ]?v2|\bia3\b", "norms"),
    (r"\bema\b", "average"),
)
"""Words for what a job holds that neither its kind nor its adapter says."""

_OPTIMIZERS = (
    (r"paged(?![-_ ]?(attention|kv|cache|llm))", "paged"),
    (r"8-?bit[- _]*(adam|optim)|adam\w*[- _]*8-?bit|bnb.?adam|optim\w*[ :=(]*8-?bit", "adam8bit"),
    (r"adafactor[^;|]{0,20}(momentum|beta1)", "adafactor-momentum"),
    (r"adafactor|galore|\bapollo|\bbadam|\blomo|optimi[sz]er[- ]in[- ](the[- ])?backward", "adafactor"),
    (r"\bsgd\b[^;|]{0,20}(?<!no )(?<!without )momentum", "sgd"),
    (r"\bsgd\b", "sgd-plain"),
    (r"\blion\b", "lion"),
    (r"(bf16|16-bit|bfloat16)[- ](adam|moments)|moments in bf16", "adam-bf16"),
)


def probe_in(unit: str, notes: str) -> str:
    """The counter that a unit or a note names.

    >>> probe_in("GiB max_memory_reserved, worst rank", ""), probe_in("GiB active", ""), probe_in("GB", "bs 2")
    ('reserved', 'active', 'unknown')
    """
    text = f"{unit} {notes}".casefold()
    return next((probe for words, probe in _PROBES if re.search(words, text)), "unknown")


def also_held_in(notes: str) -> str:
    """Return what notes name beside the model and its adapter, joined by plus signs: `ends` (embedding and output
    projection are trained), `norms` (norms, biases and scales are), `average` (a moving average of the weights).

    >>> also_held_in("LoRA (emb); bs 1"), also_held_in("adapter_v2, EMA on"), also_held_in("a note")
    ('ends', 'norms+average', 'none')
    """
    text = notes.casefold()
    return "+".join(word for words, word in _HELD if re.search(words, text)) or "none"


def needs_extras(metric: str, adapter: str) -> bool:
    """Return True where what is trained or held beside counts: in a row's memory, and in any row of an adapter.

    >>> needs_extras("step_time_s", "lora"), needs_extras("oom", ""), needs_extras("step_time_s", "full")
    (True, True, False)
    """
    return metric.startswith("peak_mem") or metric == "oom" or adapter not in ("", "full")


def optimizer_in(text: str) -> str | None:
    """The optimizer that a text names.

    >>> optimizer_in("bs 2, adamw_8bit, fp16"), optimizer_in("paged attention")
    ('adam8bit', None)
    """
    return next((name for words, name in _OPTIMIZERS if re.search(words, text)), None)
