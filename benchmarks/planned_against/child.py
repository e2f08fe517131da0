"""One case in the native engine: CPU seconds by phase, or bytes.

The stage's own module runs, as a run would start it. Seconds are of the process (`time.process_time`), so that other
programs on the machine count little. Bytes are those of storages that torch operations make.
"""

import functools
import json
import multiprocessing
import os
import statistics
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.models.chat import train_tokenizer
from charter.models.engine_layout import CPU_VALUES
from charter.models.language_model import LanguageModel, new_language_model
from charter.models.preference import PreferenceModel, ScalarModel
from charter.spec.project import DataSpec

from .cases import Case
from .data import write_data
from .live import TaggedBytes

WARMUP = 3
PHASES = ("generate", "score", "update")


def stage(case: Case, place: Path, steps: int) -> StageDir:
    """A stage directory with its job, its models and its data."""
    place.mkdir(parents=True, exist_ok=True)
    write_data(place, case.seq)
    tokenizer = train_tokenizer(["bcd fgh"], vocab_size=300)
    model = new_language_model(case.architecture, tokenizer, seed=1)
    _save(place / "m", model, case.seq if case.kind == "ppo" else 0)
    spec = case.spec(steps)
    inputs = {}
    for role, target in spec.REFERENCES.items():
        named = spec.named(role)
        names = (named,) if isinstance(named, str) else named
        if names:
            inputs[role] = tuple(_input(role, name, target, place) for name in names)
    job = Job(
        run="planned-against", stage="measured", kind=case.kind, fingerprint="0" * 64, seed=1, spec=spec,
        inputs=inputs, constitution=None, keep_last=1,
        frozen={"threads": 1, "device": "cpu", "micro_batch": case.micro, "recompute": case.recompute,
                **CPU_VALUES, "world_size": case.processes, **case.degrees},
    )  # fmt: skip
    directory = place / "stage"
    directory.mkdir()
    write_job(directory, job)
    return StageDir(directory)


def _save(path: Path, model: LanguageModel, reward_tokens: int) -> None:
    """A directory that serves as language model, and as preference model where one is read."""
    if not reward_tokens:
        model.save(path)
        return
    settings: dict[str, Any] = {"pooling": "last", "context": "full", "seq_len": reward_tokens}
    PreferenceModel(ScalarModel(model), model, settings | {"score_mean": 0.0, "score_deviation": 1.0}).save(path)


def _input(role: str, name: str, target: str, place: Path) -> JobInput:
    is_model = target == "model"
    path = place / ("m" if is_model else f"{name}.jsonl")
    return JobInput(
        name=name, role=role, source="model" if is_model else "data", path=str(path), fingerprint="0" * 64,
        data=None if is_model else DataSpec(path=str(path)),
    )  # fmt: skip


def seconds(case: Case, place: Path, steps: int) -> dict[str, Any]:
    """CPU seconds of a step by phase: medians over the steps after the warm-up."""
    from charter.train import setup

    setup.Meter = functools.partial(setup.Meter, clock=time.process_time)  # type: ignore[attr-defined,assignment]
    directory = stage(case, place, steps + WARMUP)
    import_module(f"charter.train.{case.kind}").run(directory)
    lines = [json.loads(line) for line in (directory.path / "metrics.jsonl").read_text().splitlines()][WARMUP:]
    medians = {phase: statistics.median(line[f"seconds_{phase}"] for line in lines) for phase in PHASES}
    totals = [sum(line[f"seconds_{phase}"] for phase in (*PHASES, "wait", "other")) for line in lines]
    return {**medians, "step": statistics.median(totals), "spread": [min(totals), max(totals)]}


def measured_bytes(case: Case, place: Path) -> dict[str, Any]:
    """Peak bytes of the third step, and what they are; those of the fullest of several processes."""
    directory = stage(case, place, 3)
    if case.processes == 1:
        return _bytes_here(case, directory)
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()
    members = [context.Process(target=_member, args=(case, directory, rank, answers)) for rank in range(case.processes)]
    for member in members:
        member.start()
    each = [answers.get() for _ in members]
    for member in members:
        member.join()
    if failed := [answer for answer in each if isinstance(answer, str)]:
        raise RuntimeError(failed[0])
    fullest: dict[str, Any] = max(each, key=lambda answer: float(answer["total"]))
    return fullest


def _bytes_here(case: Case, directory: StageDir) -> dict[str, Any]:
    live = TaggedBytes(vocabulary=case.architecture.vocab_size)
    with live.watching():
        import_module(f"charter.train.{case.kind}").run(directory)
    return live.found()


def _member(case: Case, directory: StageDir, rank: int, answers: Any) -> None:
    """One of several processes of a stage."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(case.processes), "LOCAL_RANK": str(rank), "CHARTER_GROUP": "g"}
    try:
        answers.put(_bytes_here(case, directory))
    except Exception:  # the first process says what went wrong
        answers.put(traceback.format_exc()[-1500:])
    finally:
        os._exit(0)


def measured(case: Case, what: str, steps: int, place: Path) -> dict[str, Any]:
    """CPU seconds or bytes."""
    return measured_bytes(case, place) if what == "bytes" else seconds(case, place, steps)
