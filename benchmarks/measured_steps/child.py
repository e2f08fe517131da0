"""One case, measured with the project's own training and sampling code; runs in a process of its own."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from charter.artifacts.checkpoints import Position
from charter.data.dataset import Pair
from charter.inference.generate import SamplingSettings, generate
from charter.models.chat import Encoded
from charter.models.parallel import Parallel, parallelize
from charter.models.runtime import configure
from charter.spec.stage import PreferenceModelStage, SftStage
from charter.train.encoded_pairs import EncodedPairs
from charter.train.loop import TrainingTask
from charter.train.meter import Meter
from charter.train.optimizers import make_optimizer
from charter.train.preference_model import pair_loss
from charter.train.pretrain import language_loss
from charter.train.setup import Setup
from charter.train.supervised import BatchLoss, SupervisedTask
from charter.train.token_data import collate

from .grid import Case
from .memory import PeakMemory, gib_of, optimizer_gib
from .subjects import (
    add_lora,
    language_model,
    preference_model,
    question,
    setup_of,
    stage_dtype,
    text_of,
    token_ids,
)

BATCHES_OF_DATA = 2


def clock() -> float:
    """Seconds, when the device has done all it was told."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed_steps(task: TrainingTask, memory: PeakMemory, *, steps: int, warmup: int) -> list[float]:
    """Seconds of each step after the warm-up, from whose end on memory is watched anew."""
    seconds = []
    for step in range(warmup + steps):
        if step == warmup:
            memory.reset()
        start = clock()
        for part in range(task.parts):
            task.run_part(Position(step, part))
        seconds.append(clock() - start)
    return seconds[warmup:]


def measure(
    case: Case, device_name: str, threads: int, steps: int, warmup: int, *, strict: bool = True
) -> dict[str, Any]:
    """Medians, peaks and sizes of a case; raises what torch raises when memory runs out.

    Kernels are those of stages; not `strict` are those that only warn where they add up in any order, to see the price.
    """
    device = configure({"threads": threads, "device": device_name})
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.manual_seed(1)
    memory = PeakMemory(device)
    if case.kind == "ppo":
        from .ppo_case import measure_ppo

        result = measure_ppo(case, device, memory, steps=min(steps, 4), warmup=1)
    elif case.kind == "inference":
        result = _inference(case, device, memory, repeats=min(steps, 3))
    else:
        result = _supervised(case, device, memory, steps=steps, warmup=warmup)
    return result | {"memory_unit": memory.unit, "reserved_gib": memory.reserved_gib()}


def _supervised(case: Case, device: torch.device, memory: PeakMemory, *, steps: int, warmup: int) -> dict[str, Any]:
    make = _preference_loss if case.kind == "rm" else _language_loss
    spec_class: Any = PreferenceModelStage if case.kind == "rm" else SftStage
    spec = spec_class(
        init="model", data=("data",), steps=steps + warmup, global_batch=case.global_batch, seq_len=case.seq,
        dtype=stage_dtype(case), schedule="constant",
    )  # fmt: skip
    meter = Meter(Path(), device=device)
    setup = setup_of(spec, device, meter, micro_batch=case.micro_batch, recompute=case.recompute)
    parallel, parameters, loss_of = make(case, setup)
    optimizer = make_optimizer([(parallel.trained_parameters(), spec.learning_rate)], spec)
    rows = case.global_batch * BATCHES_OF_DATA
    task = SupervisedTask(setup, parallel, optimizer, spec, rows, steps + warmup, loss_of)
    seconds = timed_steps(task, memory, steps=steps, warmup=warmup)
    return {
        "metrics": {"step_time_s": statistics.median(seconds)},
        "spread": [min(seconds), max(seconds)],
        "steps": len(seconds),
        "peak_gib": memory.peak_gib(),
        "resident_gib": {"weights": gib_of(parallel.module.parameters()), "optimizer": optimizer_gib(optimizer)},
        "params_b": parameters / 1e9,
    }


Loss = Callable[[Sequence[int], int], BatchLoss]


def _language_loss(case: Case, setup: Setup) -> tuple[Parallel, int, Loss]:
    model = language_model(case, setup.device)
    parameters = sum(item.numel() for item in model.model.parameters())
    if case.lora_rank:
        add_lora(model, case.lora_rank)
    parallel = parallelize(model.model, setup.layout, setup.ranks, dtype=stage_dtype(case))
    vocabulary = case.architecture.vocab_size
    data = [
        Encoded(tuple(token_ids(case.seq, vocabulary, row)), (True,) * case.seq)
        for row in range(case.global_batch * BATCHES_OF_DATA)
    ]

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        batch = collate([data[row] for row in rows], padding=model.padding_id)
        return language_loss(parallel.call, *batch, dtype=stage_dtype(case), device=setup.device)

    return parallel, parameters, loss_of


def _preference_loss(case: Case, setup: Setup) -> tuple[Parallel, int, Loss]:
    model = preference_model(case, setup.device)
    parallel = parallelize(model.scalar, setup.layout, setup.ranks, dtype=stage_dtype(case))
    vocabulary, answer = case.architecture.vocab_size, case.seq // 2
    read = [
        Pair(
            id=str(row),
            prompt=question(case.seq - answer, vocabulary, 3 * row),
            chosen=text_of(answer - 1, vocabulary, 3 * row + 1),
            rejected=text_of(answer - 1, vocabulary, 3 * row + 2),
        )
        for row in range(case.global_batch * BATCHES_OF_DATA)
    ]

    pairs = EncodedPairs(model, read)

    def loss_of(rows: Sequence[int], step: int) -> BatchLoss:
        return pair_loss(model, [pairs[row] for row in rows], setup.job.spec, call=parallel.call)  # type: ignore[arg-type]

    return parallel, sum(item.numel() for item in model.scalar.parameters()), loss_of


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
