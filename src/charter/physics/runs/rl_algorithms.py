"""Reinforcement learning from feedback: which models an algorithm needs at every step, and how its stack runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Work of one step besides generating answers and updating the policy."""

    name: str
    critic: bool = False
    """A value model is read and trained."""
    reference: bool = True
    """Log-probabilities of a frozen copy, for the penalty."""
    old_policy: bool = True
    """Log-probabilities of the policy itself are computed again by the training engine."""
    generates: bool = True
    resamples: bool = False
    """Prompts whose answers are all right or all wrong are drawn again (DAPO, arXiv:2503.14476, section 3.2)."""


PPO = Algorithm(name="PPO", critic=True)
GRPO = Algorithm(name="GRPO")
RLOO = Algorithm(name="RLOO")
DAPO = Algorithm(name="DAPO", reference=False, resamples=True)
DPO = Algorithm(name="DPO", old_policy=False, generates=False)
REINFORCE = Algorithm(name="REINFORCE++")
_NAMES: tuple[tuple[str, Algorithm], ...] = (
    (r"\bdapo\b", DAPO),
    (r"\bgrpo\b|dr\.? ?grpo|gspo", GRPO),
    (r"\brloo\b", RLOO),
    (r"reinforce|remax", REINFORCE),
    (r"\bdpo\b|\bipo\b|\bkto\b|simpo|orpo", DPO),
    (r"\bppo\b", PPO),
)


def algorithm_named(*texts: str) -> Algorithm | None:
    """The algorithm that the first telling text names, None when none does.

    >>> algorithm_named("GRPO On policy").name, algorithm_named("DAPO On policy").resamples, algorithm_named("x")
    ('GRPO', True, None)
    """
    for text in texts:
        for pattern, algorithm in _NAMES:
            if re.search(pattern, text.casefold()):
                return algorithm
    return None


@dataclass(frozen=True, kw_only=True)
class RlStack:
    """Way in which a framework runs a step."""

    label: str
    engine: str
    """Name of the generation engine, for `physics.serving.engines.engine_named`."""
    packs: bool = True
    """Sequences are packed, so padding costs nothing."""
    resharding: bool = True
    """Weights are gathered, converted and handed to a separate engine every step."""
    overhead: float = 1.0
    """Seconds per step outside of all phases, over the usual of a system with separate engines."""


_STACKS: tuple[tuple[str, RlStack], ...] = (
    (r"nemo[- ]?rl", RlStack(label="nemo-rl", engine="vllm")),
    (r"nemo[- ]?aligner", RlStack(label="nemo-aligner", engine="tensorrt-llm", packs=False)),
    (r"verl|hybridflow", RlStack(label="verl", engine="vllm", overhead=0.7)),
    (r"openrlhf", RlStack(label="openrlhf", engine="vllm", overhead=0.7)),
    (r"areal|real-?(hf|rl)?\b", RlStack(label="areal", engine="sglang", overhead=0.7)),
    (r"slime|miles", RlStack(label="slime", engine="sglang", overhead=0.7)),
    (r"open-?instruct|prime-rl|skyrl|\broll\b", RlStack(label="openrlhf", engine="vllm")),
    (
        r"deepspeed[- ]?chat|hybrid engine",
        RlStack(label="deepspeed-chat", engine="deepspeed hybrid engine", packs=False, resharding=False, overhead=0.02),
    ),
    (r"colossal", RlStack(label="native", engine="transformers", packs=False, resharding=False, overhead=0.05)),
    (r"trlx", RlStack(label="native", engine="transformers", packs=False, resharding=False, overhead=0.05)),
    (r"trl.*vllm|vllm.*trl", RlStack(label="openrlhf", engine="vllm", packs=False)),
    (
        r"\btrl\b|transformers|hugging ?face|\bhf\b|native|torch",
        RlStack(label="native", engine="transformers", packs=False, resharding=False, overhead=0.05),
    ),
)
SEPARATE_ENGINE = RlStack(label="rl", engine="vllm")


def rl_stack_named(framework: str) -> RlStack:
    """Return the stack by which a framework runs a step; an unknown one as trainer and vLLM side by side.

    >>> rl_stack_named("DeepSpeed-Chat hybrid engine 2023-04").label, rl_stack_named("my own").label
    ('deepspeed-chat', 'rl')
    >>> rl_stack_named("PyTorch FSDP + SGLang").engine, rl_stack_named("PyTorch FSDP").engine
    ('sglang', 'transformers')
    """
    lowered = framework.casefold()
    by_name = next((stack for pattern, stack in _STACKS if re.search(pattern, lowered)), SEPARATE_ENGINE)
    separate = re.search(r"vllm|sglang|tensorrt", lowered) if by_name.label == "native" else None
    return replace(SEPARATE_ENGINE, engine=separate[0]) if separate else by_name
