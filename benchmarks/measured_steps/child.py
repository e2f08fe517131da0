"""One case, measured with the project's own training and sampling code; runs in a process of its own."""

import statistics
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from charter.inference.generate import SamplingSettings, generate
from charter.models.chat import Encoded
from charter.models.runtime import configure
from charter.spec.dataset import Pair
from charter.spec.stage import PreferenceModelStage, SftStage
from charter.train.preference_model import pair_loss
from charter.train.pretrain import language_loss
from charter.train.sft import collate
from charter.train.supervised import BatchLoss, SupervisedRun, make_optimizer

from .grid import Case
from .memory import PeakMemory, gib_of, optimizer_gib
from .subjects import (
    add_adapters,
    language_model,
    preference_model,
    question,
    recompute_layers,
    stage_dtype,
    text_of,
    token_ids,
)

BATCHES_OF_DATA = 2


class TimedStage:
    """Stands in for a stage's directory: writes nothing, and notes the time at every report."""

    def __init__(self, spec: Any, memory: PeakMemory, *, warmup: int, micro_batch: int = 0) -> None:
        frozen = {"micro_batch": micro_batch}
        self.job = SimpleNamespace(seed=1, stage="measured", spec=spec, frozen=frozen)
        self.memory, self.warmup = memory, warmup
        self.seconds: list[float] = []
        self.last = time.perf_counter()

    def latest_checkpoint(self) -> None:
        """There is none."""

    def should_stop(self) -> bool:
        """Never."""
        return False

    def save_checkpoint(self, step: int, write: Callable[..., None]) -> None:
        """Nothing is saved: the time of a checkpoint is no part of a step."""

    def report(self, step: int, *unused: object) -> None:
        """A step is done; after the warm-up memory is watched anew."""
        now = clock()
        self.seconds.append(now - self.last)
        if step == self.warmup:
            self.memory.reset()
        self.last = clock()

    @property
    def measured(self) -> list[float]:
        """Seconds of the steps after the warm-up."""
        return self.seconds[self.warmup :]


def clock() -> float:
    """Seconds, when the device has done all it was told."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(case: Case, device_name: str, threads: int, steps: int, warmup: int) -> dict[str, Any]:
    """Medians, peaks and sizes of a case; raises what torch raises when memory runs out."""
    device = configure({"threads": threads, "device": device_name})
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(1)
    memory = PeakMemory(device)
    if case.kind == "ppo":
        from .ppo_case import measure_ppo

        found = measure_ppo(case, device, memory, steps=min(steps, 4), warmup=1)
    elif case.kind == "inference":
        found = _inference(case, device, memory, repeats=min(steps, 3))
    else:
        found = _supervised(case, device, memory, steps=steps, warmup=warmup)
    return found | {"memory_unit": memory.unit, "reserved_gib": memory.reserved_gib()}


def _supervised(case: Case, device: torch.device, memory: PeakMemory, *, steps: int, warmup: int) -> dict[str, Any]:
    make = _preference_loss if case.kind == "rm" else _language_loss
    spec_class: Any = PreferenceModelStage if case.kind == "rm" else SftStage
    spec = spec_class(
        init="model", data=("data",), steps=steps + warmup, global_batch=case.global_batch, seq_len=case.seq,
        dtype=stage_dtype(case), schedule="constant",
    )  # fmt: skip
    module, parameters, loss_of = make(case, device)
    optimizer = make_optimizer([(list(module.parameters()), spec.learning_rate)], spec)
    stage = TimedStage(spec, memory, warmup=warmup, micro_batch=case.micro_batch)
    rows = case.global_batch * BATCHES_OF_DATA
    SupervisedRun(stage, module, optimizer, spec, rows, steps + warmup, loss_of).train()  # type: ignore[arg-type]
    return {
        "metrics": {"step_time_s": statistics.median(stage.measured)},
        "spread": [min(stage.measured), max(stage.measured)],
        "steps": len(stage.measured),
        "peak_gib": memory.peak_gib(),
        "resident_gib": {"weights": gib_of(module.parameters()), "optimizer": optimizer_gib(optimizer)},
        "params_b": parameters / 1e9,
    }


Loss = Callable[[Sequence[int], int], BatchLoss]


def _language_loss(case: Case, device: torch.device) -> tuple[torch.nn.Module, int, Loss]:
    model = language_model(case, device)
    parameters = sum(item.numel() for item in model.model.parameters())
    if case.lora_rank:
        add_adapters(model.model, case.lora_rank)
    if case.recompute:
        recompute_layers(model.model)
    vocabulary = case.architecture.vocab_size
    data = [
        Encoded(tuple(token_ids(case.seq, vocabulary, row)), (True,) * case.seq)
        for row in range(case.global_batch * BATCHES_OF_DATA)
    ]

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        batch = collate([data[row] for row in rows], padding=model.padding_id)
        return language_loss(model, *batch, dtype=stage_dtype(case))

    return model.model, parameters, loss_of


def _preference_loss(case: Case, device: torch.device) -> tuple[torch.nn.Module, int, Loss]:
    model = preference_model(case, device)
    if case.recompute:
        recompute_layers(model.scalar.body)
    vocabulary, answer = case.architecture.vocab_size, case.seq // 2
    pairs = [
        Pair(
            id=str(row),
            prompt=question(case.seq - answer, vocabulary, 3 * row),
            chosen=text_of(answer - 1, vocabulary, 3 * row + 1),
            rejected=text_of(answer - 1, vocabulary, 3 * row + 2),
        )
        for row in range(case.global_batch * BATCHES_OF_DATA)
    ]

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        return pair_loss(model, [pairs[row] for row in rows], dtype=stage_dtype(case))

    return model.scalar, sum(item.numel() for item in model.scalar.parameters()), loss_of


def _inference(case: Case, device: torch.device, memory: PeakMemory, *, repeats: int) -> dict[str, Any]:
    model = language_model(case, device)
    vocabulary, batch = case.architecture.vocab_size, case.micro_batch
    prompts = [token_ids(case.prompt_tokens, vocabulary, row) for row in range(batch)]
    settings = SamplingSettings(case.answer_tokens, case.answer_tokens, dtype=stage_dtype(case))
    seconds = []
    for repeat in range(repeats + 1):
        if repeat == 1:
            memory.reset()
        start = clock()
        answers = generate(model, prompts, seeds=range(batch), settings=settings)
        seconds.append(clock() - start)
        assert answers.answer_BR.shape == (batch, case.answer_tokens)
    middle = statistics.median(seconds[1:])
    return {
        "metrics": {"out_tokens_per_s": batch * case.answer_tokens / middle},
        "spread": [min(seconds[1:]), max(seconds[1:])],
        "steps": repeats,
        "peak_gib": memory.peak_gib(),
        "resident_gib": {"weights": gib_of(model.model.parameters())},
        "params_b": sum(item.numel() for item in model.model.parameters()) / 1e9,
    }
