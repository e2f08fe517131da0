"""Cells that sources spell in many ways, in one spelling: kind, adapter, recomputation, offloading.

Values that are in that spelling already stay as they are; what nobody knows stays too.
"""

import re
from collections.abc import Mapping

_KINDS: tuple[tuple[str, str], ...] = (
    (r"pre-?train\w*|training", "pretrain"),
    (r"(full[- ])?fine-?tun\w*|full[- ]ft|dpo|orpo|kto|simpo", "sft"),
    (r"q?lora|peft|q?dora", "lora"),
    (r"reward([- _]model\w*)?", "rm"),
    (r"grpo|dapo|rlhf|rl|rloo|rlvr|reinforce\S*", "ppo"),
    (r"serving|generation|infer", "inference"),
    (r"run([- ]total)?|total", "run_total"),
)
_ADAPTERS: tuple[tuple[str, str], ...] = (
    (r"q-?[ld]ora", "qlora"),
    (r"lora|dora|\bpeft\b|ia3|adapter", ""),
    (r"^(full|none|no|fft|ft|sft|all|freeze)\b|full[- _]?(param|fine|ft)|galore|lomo|badam|apollo|q-?galore", "full"),
)
"""The first pattern found decides; an empty spelling keeps the word, in small letters (`lora`, `adapter_v2`)."""
_NOTHING = re.compile(r"(none|no|off|false|disabled|0|without)\b")
_EVERYTHING = re.compile(
    r"(yes|on|true|1|enabled|gc|ac|(gradient|activation)?[- _]*checkpoint(ing)?|full ac|full gc|all)$"
)
_SAVES_SOME = re.compile(r"\bsac\b")
_HOST = re.compile(
    r"cpu[- _]?offload|zero[- ]?offload|zero[- ]?infinity|(?<!no )(?<!without )offload(?!\w*\s*(none|no))"
)
_UNSAID_HOST = re.compile(r"(cpu|host|ram|nvme|disk|yes|true|1|on|all|full|enabled)(?![- ]?adam)\b")


def kind_of(printed: str) -> str:
    """The kind of a row.

    >>> kind_of("GRPO"), kind_of("full fine-tuning"), kind_of("pretrain")
    ('ppo', 'sft', 'pretrain')
    """
    plain = printed.casefold().strip()
    return next((kind for words, kind in _KINDS if re.fullmatch(words, plain)), plain or "pretrain")


def adapter_of(printed: str, *, kind: str) -> str:
    """Return what is trained: `full`, `lora`, `qlora` or the adapter's own name; rows of kind lora train adapters.

    >>> adapter_of("QLoRA (nf4)", kind="lora"), adapter_of("Full-parameter", kind="sft")
    ('qlora', 'full')
    >>> adapter_of("", kind="lora"), adapter_of("DoRA", kind="lora"), adapter_of("", kind="sft")
    ('lora', 'lora', '')
    """
    plain = printed.casefold().strip()
    if not plain:
        return "lora" if kind == "lora" else ""
    spelling = next((spelt for words, spelt in _ADAPTERS if re.search(words, plain)), "")
    if spelling:
        return spelling
    return "lora" if re.search(r"lora|dora", plain) else plain


def recompute_of(printed: str) -> str:
    """The policy: `full` and `none` for the many ways of saying yes and no, everything else as printed.

    >>> recompute_of("gradient checkpointing"), recompute_of("None (flash)"), recompute_of("block 4")
    ('full', 'none', 'block 4')
    """
    plain = printed.casefold().strip()
    if _NOTHING.match(plain):
        return "none"
    if _SAVES_SOME.search(plain):
        return f"selective {plain}"
    return "full" if _EVERYTHING.match(plain) else printed


def offload_of(printed: str, *, shard: str, framework: str) -> str:
    """Return what is in host memory; a bare yes or `cpu` is the optimizer, with parameters where those are sharded.

    >>> offload_of("cpu", shard="zero3", framework=""), offload_of("", shard="ZeRO-Offload", framework="")
    ('optimizer+params', 'optimizer')
    >>> offload_of("no", shard="zero3", framework=""), offload_of("", shard="zero2", framework="DeepSpeed")
    ('none', '')
    """
    plain = printed.casefold().strip()
    where = f"{shard} {framework}".casefold()
    if _NOTHING.match(plain):
        return "none"
    bare = bool(_UNSAID_HOST.match(plain)) or (not plain and bool(_HOST.search(where)))
    if bare:
        sharded = re.search(r"(zero|stage)[-_ ]*3|fsdp|infinity|full_shard", where)
        return "optimizer+params" if sharded or plain.startswith(("all", "full")) else "optimizer"
    return "optimizer" if re.search(r"cpu[- _]?adam", plain) else plain


def respelt(cells: Mapping[str, str]) -> dict[str, str]:
    """The cells of a row that have one spelling, in it."""
    kind = kind_of(cells["kind"])
    return {
        "kind": kind,
        "adapter": adapter_of(cells["adapter"], kind=kind),
        "recompute": recompute_of(cells["recompute"]),
        "offload": offload_of(cells["offload"], shard=cells["shard"], framework=cells["framework"]),
    }
