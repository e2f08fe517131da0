"""The configurations that are measured: kinds of step, models, batch and sequence sizes, precision, recomputation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

from charter.catalog import models
from charter.spec.architecture import Architecture

AMP, PURE = "amp_bf16", "bf16-true"
"""bf16 autocast over fp32 weights, as the engine trains; weights in bf16, as models are that only answer."""
GRIDS = ("smoke", "standard", "full")

OWN_SHAPES = {
    "charter-tiny": Architecture(
        hidden_size=64, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=176, vocab_size=512,
        tied_embeddings=True, model_type="llama",
    ),
    "charter-10M": Architecture(
        hidden_size=256, num_layers=6, num_heads=8, num_kv_heads=4, intermediate_size=768, vocab_size=8192,
        tied_embeddings=True, model_type="qwen3",
    ),
    "charter-0.1B": Architecture(
        hidden_size=768, num_layers=12, num_heads=12, num_kv_heads=4, intermediate_size=2048, vocab_size=32_000,
        tied_embeddings=True, model_type="llama",
    ),
}  # fmt: skip
"""Shapes of our own, below the smallest models of the catalog."""
LADDER = ("charter-0.1B", "Qwen3-0.6B", "Llama-3.2-1B", "Qwen3-4B", "Llama-3.1-8B")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration, measured in a process of its own."""

    kind: str
    """sft, lora, rm, ppo or inference."""
    model: str
    precision: str = AMP
    micro_batch: int = 1
    """Sequences (rm: pairs) of one pass; ppo: the minibatch, which is an optimizer step; inference: the batch."""
    accumulation: int = 1
    seq: int = 0
    recompute: bool = False
    lora_rank: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    """ppo and inference: every prompt and every answer has exactly this length; `seq` is their sum."""
    rollout_batch: int = 0

    @property
    def architecture(self) -> Architecture:
        """The shape that is built with random weights."""
        return OWN_SHAPES[self.model] if self.model in OWN_SHAPES else models.get(self.model).architecture

    @property
    def global_batch(self) -> int:
        """Sequences (rm: pairs) of one optimizer step."""
        return self.micro_batch * self.accumulation

    @property
    def label(self) -> str:
        """For people: `sft Qwen3-0.6B amp_bf16 4x1 seq 2048 recompute`."""
        size = f"{self.micro_batch}x{self.accumulation}"
        lengths = f"{self.prompt_tokens}+{self.answer_tokens}" if self.answer_tokens else f"seq {self.seq}"
        parts = [self.kind, self.model, self.precision, size, lengths]
        parts += ["recompute"] * self.recompute
        parts += [f"rank {self.lora_rank}"] * bool(self.lora_rank)
        parts += [f"rollout {self.rollout_batch}"] * bool(self.rollout_batch)
        return " ".join(parts)

    def needs_no_less_than(self, other: "Case") -> bool:
        """Return True if this case cannot fit where `other` ran out of memory: the same, with sizes no smaller."""
        alike = replace(
            self, micro_batch=other.micro_batch, seq=other.seq, accumulation=other.accumulation,
            recompute=other.recompute, rollout_batch=other.rollout_batch,
        )  # fmt: skip
        return (
            alike == other
            and self.micro_batch >= other.micro_batch
            and self.seq >= other.seq
            and self.rollout_batch >= other.rollout_batch
            and self.recompute <= other.recompute
        )


def grid(name: str, *, on_cpu: bool) -> tuple[Case, ...]:
    """The cases of a grid, kinds taken in turn and small models first, so that a run cut short has some of each."""
    if on_cpu:
        lists = {"smoke": _tiny("charter-tiny"), "standard": _tiny("charter-10M"), "full": _tiny("charter-0.1B")}[name]
    elif name == "smoke":
        small = ("Qwen3-0.6B",)
        lists = [_sft(small, [(4, 1024)]), *(iter((next(cases),)) for cases in _kinds(small))]
    elif name == "standard":
        lists = [_sft(LADDER, [(1, 1024), (4, 2048), (8, 2048)]), *_kinds(LADDER)]
    else:
        sizes = [(1, 1024), (1, 4096), (2, 2048), (4, 2048), (8, 512), (8, 2048), (16, 1024), (2, 8192)]
        more = (*LADDER[:3], "Qwen3-1.7B", "Llama-3.2-3B", *LADDER[3:], "Qwen3-8B")
        lists = [_sft(more, sizes), *_kinds(more)]
    in_turn = chain.from_iterable(zip_longest(*(list(cases) for cases in lists)))
    return tuple(dict.fromkeys(case for case in in_turn if case is not None))


def _kinds(names: Sequence[str]) -> list[Iterator[Case]]:
    return [_rm(names), _lora(names), _ppo(names), _inference(names)]


def _sft(names: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    for model in names:
        for micro_batch, seq in sizes:
            yield Case(kind="sft", model=model, micro_batch=micro_batch, seq=seq)
        micro_batch, seq = sizes[-1]
        largest = Case(kind="sft", model=model, micro_batch=micro_batch, seq=seq)
        yield replace(largest, recompute=True)
        yield replace(largest, micro_batch=1, accumulation=4)


def _rm(names: Sequence[str]) -> Iterator[Case]:
    for model in names:
        for recompute in (False, True):
            yield Case(kind="rm", model=model, micro_batch=4, seq=1024, recompute=recompute)


def _lora(names: Sequence[str]) -> Iterator[Case]:
    for model in names:
        for recompute in (False, True):
            yield Case(kind="lora", model=model, micro_batch=4, seq=2048, lora_rank=16, recompute=recompute)


def _ppo(names: Sequence[str]) -> Iterator[Case]:
    for model in names:
        base = Case(
            kind="ppo", model=model, micro_batch=8, seq=512, prompt_tokens=256, answer_tokens=256, rollout_batch=64
        )  # fmt: skip
        yield base
        yield replace(base, recompute=True)


def _inference(names: Sequence[str]) -> Iterator[Case]:
    for model in names:
        for precision in (PURE, AMP):
            for batch in (1, 8, 64):
                yield Case(
                    kind="inference", model=model, precision=precision, micro_batch=batch, seq=640,
                    prompt_tokens=512, answer_tokens=128,
                )  # fmt: skip


def _tiny(model: str) -> list[Iterator[Case]]:
    """Every kind of case at sizes that a processor manages; they test the script, no row of them is for calibration."""
    sft = Case(kind="sft", model=model, micro_batch=2, seq=64)
    ppo = Case(
        kind="ppo", model=model, micro_batch=2, seq=32, prompt_tokens=16, answer_tokens=16, rollout_batch=4
    )  # fmt: skip
    return [
        iter((sft, replace(sft, recompute=True), replace(sft, micro_batch=1, accumulation=4))),
        iter((replace(sft, kind="rm"),)),
        iter((replace(sft, kind="lora", lora_rank=4), replace(sft, kind="lora", lora_rank=4, recompute=True))),
        iter((ppo, replace(ppo, recompute=True))),
        iter((Case(kind="inference", model=model, micro_batch=2, seq=24, prompt_tokens=16, answer_tokens=8),)),
    ]
