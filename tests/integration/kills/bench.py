"""Real stages of a very small real model, started as a run starts them, and killed as tests ask.

Stage processes are forks of a server that has imported torch, so that a start takes a fraction of a second. Every
stage keeps all its checkpoints: the hashes of their files are the chain that a disturbed run is compared with.
"""

import json
import random
import shutil
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from waiting import eventually

from charter.artifacts.job import Job, JobInput, write_job
from charter.launch.job import STAGE_MODULES, preloaded_modules
from charter.launch.launcher import StageStart
from charter.launch.local import local_launcher, stage_environment
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Serving
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    LabelStage,
    PreferenceModelStage,
    PrepareStage,
    SftStage,
)

KILLED = -signal.SIGKILL
CLOCKED = ("time", "seconds", "per_second", "bytes", "over_planned", "checkpoint", "mfu")
"""Parts of names of metrics that depend on the clock or the machine."""
TOPICS = ("tea", "bread", "rain", "chess", "maps", "birds", "soap", "trains", "cards", "glass", "wool", "salt")


def prompt(topic: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"How do I learn about {topic}?"}]


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def rows(name: str) -> list[dict]:
    good, bad = "Read a book about {} and ask a friend.", "No."
    if name == "pairs":
        return [
            {"id": t, "prompt": prompt(t), "chosen": [answer(good.format(t))], "rejected": [answer(bad)]}
            for t in TOPICS
        ]
    if name == "chats":
        return [{"id": t, "messages": [*prompt(t), answer(good.format(t))]} for t in TOPICS]
    return [{"id": t, "prompt": prompt(t)} for t in TOPICS]


@dataclass(frozen=True)
class Kind:
    """One kind of stage with what it reads: (role, what made it, name of the directory)."""

    spec: object
    inputs: tuple[tuple[str, str, str], ...]


PRINCIPLES = """schema: charter.constitution/v1
name: tests
principles:
  - {id: kind, critique: "Was the answer kind?", revision: Make it kinder., compare: "Which answer is kinder?"}
  - {id: honest, critique: "Was the answer true?", revision: Make it truer., compare: "Which is truer?", weight: 2}
"""
SAMPLING = {"max_new_tokens": 6, "max_prompt_tokens": 96, "rollout_batch": 1}
PROMPTS = ("prompts", "critique", "prompts")
OPTIMIZATION = {"steps": 12, "global_batch": 8, "seq_len": 64, "learning_rate": 1e-3, "dtype": "fp32", "dropout": 0.1}
KINDS = {
    "sft": Kind(
        SftStage(init="b", data=("d",), checkpoint_every=1, **OPTIMIZATION),
        (("init", "sft", "base"), ("data", "critique", "chats")),
    ),
    "preference_model": Kind(
        PreferenceModelStage(init="b", data=("d",), checkpoint_every=1, **OPTIMIZATION),
        (("init", "sft", "base"), ("data", "label", "pairs")),
    ),
    "dpo": Kind(
        DpoStage(init="b", data=("d",), checkpoint_every=1, **OPTIMIZATION),
        (("init", "sft", "base"), ("data", "label", "pairs")),
    ),
    "ppo": Kind(
        PpoStage(
            policy="p",
            reward="r",
            prompts=("q",),
            episodes=12 * 8,
            rollout_batch=8,
            minibatch=4,
            ppo_epochs=3,
            max_new_tokens=8,
            max_prompt_tokens=24,
            learning_rate=1e-3,
            value_learning_rate=1e-3,
            kl_target=1.0,
            kl_horizon=100,
            dtype="fp32",
            checkpoint_every=1,
            checkpoint_epochs=True,
        ),
        (("policy", "sft", "base"), ("reward", "preference_model", "pm"), PROMPTS),
    ),
    "prepare": Kind(PrepareStage(data=("q",), min_characters=2), (("data", "critique", "prompts"),)),
    "generate": Kind(
        GenerateStage(policy="p", prompts=("q",), answers_per_prompt=2, **SAMPLING),
        (("policy", "sft", "base"), PROMPTS),
    ),
    "critique": Kind(
        CritiqueStage(policy="p", critic="p", prompts=("q",), revisions=2, **SAMPLING),
        (("policy", "sft", "base"), ("critic", "sft", "base"), PROMPTS),
    ),
    "label": Kind(
        LabelStage(judge="j", policy="p", prompts=("q",), pairs=8, candidates=("c",), **SAMPLING),
        (("judge", "sft", "base"), ("policy", "sft", "base"), PROMPTS, ("candidates", "label", "pairs")),
    ),
    "eval": Kind(
        EvalStage(
            policy="p",
            judge="j",
            reward="r",
            pairs=("c",),
            suites=("perplexity", "judge_agreement", "pm_accuracy"),
            **SAMPLING,
        ),
        (
            ("policy", "sft", "base"),
            ("judge", "sft", "base"),
            ("reward", "preference_model", "pm"),
            ("pairs", "label", "pairs"),
        ),
    ),
}


def spec_of(kind: str, layout: dict[str, int | str]):
    """The stage of a kind as a layout can run it, which is checked before a run.

    The batches of PPO must be multiples of its processes; dropout cannot be drawn for parts of matrices.
    """
    spec = KINDS[kind].spec
    if kind == "ppo" and layout.get("world_size") == 3:
        return replace(spec, episodes=12 * 6, rollout_batch=6, minibatch=3)
    return replace(spec, dropout=0.0) if "tensor" in layout else spec


UNITS = {"sft": 12, "preference_model": 12, "dpo": 12, "ppo": 48}
"""Places where a checkpoint is made: steps, or rollouts and epochs."""


class Bench:
    """Inputs, and an engine that starts stages."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        modules = preloaded_modules(STAGE_MODULES[kind] for kind in KINDS)
        self.launcher = local_launcher(
            preload=modules, server_log=place / "server.log", environment=stage_environment(threads=1)
        )

    def make_inputs(self) -> None:
        """A base model, a preference model of it, and records; torch stays out of the process that forks."""
        import tiny

        tiny.language_model().save(self.place / "base" / "model")
        for name in ("pairs", "chats", "prompts"):
            (self.place / name).mkdir()
            lines = "".join(json.dumps(row) + "\n" for row in rows(name))
            (self.place / name / "records.jsonl").write_text(lines)
        (self.place / "constitution.yaml").write_text(PRINCIPLES)
        made = self.stage("preference_model", "pm-stage")
        assert self.finish(made) == 0, (made / "log.txt").read_text()
        shutil.copytree(made / "outputs", self.place / "pm")

    def stage(
        self,
        kind: str,
        name: str,
        *,
        spec=None,
        data: str | None = None,
        keep_last: int = 1000,
        serving: dict[str, Serving] | None = None,
        **frozen,
    ) -> Path:
        """A fresh stage directory; `frozen` is its layout, `data` the directory of other rows than the usual ones."""
        item, directory = KINDS[kind], self.place / "stages" / name
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        inputs = {
            role: (
                JobInput(
                    name=role,
                    role=role,
                    source="stage",
                    path=str(self.place / (data if data and role == "data" else where)),
                    fingerprint="0" * 64,
                    stage_kind=maker,
                ),
            )
            for role, maker, where in item.inputs
        }
        job = Job(
            run="kills",
            stage=kind,
            kind=kind,
            fingerprint="a" * 64,
            seed=7,
            spec=spec or spec_of(kind, frozen),
            inputs=inputs,
            constitution=str(self.place / "constitution.yaml"),
            frozen={"threads": 1, "device": "cpu", **frozen},
            keep_last=keep_last,
            serving=serving or {},
        )
        write_job(directory, job)
        return directory

    def start(self, directory: Path, *, job_text: bytes | None = None, **environment: str):
        """Start the stage; what to start is read from its job, or from the text of it where the file is damaged."""
        job = json.loads(job_text or (directory / "job.json").read_bytes())
        job = job.get("content", job)
        return self.launcher.start(
            StageStart(
                stage=job["stage"],
                module=STAGE_MODULES[job["kind"]],
                stage_dir=directory,
                attempt=1,
                environment={"CHARTER_SAVE": "auto", **environment},
                processes=int(job["frozen"].get("world_size", 1)),
            )
        )

    def finish(self, directory: Path, **environment: str) -> int:
        """Start the stage and wait for its end."""
        handle = self.start(directory, **environment)
        return wait(handle)

    def close(self) -> None:
        self.launcher.close()


def wait(handle, *, seconds: float = 300.0) -> int:
    def too_late() -> str:
        handle.kill()
        return "the stage did not end in time"

    eventually(lambda: handle.poll() is not None, too_late, seconds=seconds, every=0.002)
    return handle.poll()


def wait_then_kill(handle, after_seconds: float, draws: random.Random) -> bool:
    """SIGKILL one process of the stage, or all, after a while; whether it was still running."""
    deadline = time.monotonic() + after_seconds
    while time.monotonic() < deadline:
        if handle.poll() is not None:
            return False
        time.sleep(0.002)
    if handle.processes > 1 and draws.random() < 0.7:
        handle._members[draws.randrange(handle.processes)].send(signal.SIGKILL)
    else:
        handle.kill()
    return wait(handle) != 0


def hashes_of(directory: Path) -> dict[str, str]:
    """Hash of every published file, from the record."""
    record = json.loads((directory / "record.json").read_text())
    return dict(record.get("content", record)["outputs"])


def chain_of(directory: Path) -> dict[str, dict[str, str]]:
    """Hashes of the files of every checkpoint: weights, optimizer, controller, rollout in progress.

    What was set aside (`step-1.damaged-1`) is not one. `.metadata` is left out: torch writes a random identity and a
    path into that index of the tensor files.
    """
    found = {}
    for manifest in sorted((directory / "state").glob("step-*/manifest.json")):
        if "." in manifest.parent.name:
            continue
        content = json.loads(manifest.read_text())
        files = content.get("content", content)["files"]
        found[manifest.parent.name] = {name: fact["sha256"] for name, fact in files.items() if name != ".metadata"}
    return found


def measured(directory: Path) -> list[dict]:
    """The lines of metrics.jsonl without what the clock decides: losses, tokens, pairs, answers, step by step."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not any(part in key for part in CLOCKED)} for line in lines]


@dataclass(frozen=True)
class Result:
    """All that a disturbed run must have in common with an undisturbed one."""

    outputs: dict[str, str]
    chain: dict[str, dict[str, str]]
    metrics: list[dict]

    def differences(self, other: "Result") -> list[str]:
        """What is not the same, a line each."""
        found = [f"outputs/{name}" for name in _unequal(self.outputs, other.outputs)]
        found += [f"checkpoint {name}: {_unequal(self.chain.get(name, {}), other.chain.get(name, {}))}"
                  for name in _unequal(self.chain, other.chain)]  # fmt: skip
        found += [f"metrics: {mine} against {theirs}" for mine, theirs in zip(self.metrics, other.metrics, strict=False)
                  if mine != theirs]  # fmt: skip
        if len(self.metrics) != len(other.metrics):
            found.append(f"{len(self.metrics)} lines of metrics against {len(other.metrics)}")
        return found


def _unequal(one: dict, other: dict) -> list[str]:
    return sorted(name for name in {**one, **other} if one.get(name) != other.get(name))


def defects_in(directory: Path) -> list[str]:
    """Lines in the logs of a stage's processes that are no effect of a kill: an effect is a lost peer, nothing else."""
    logs = sorted(directory.glob("log*.txt"))
    return [line for log in logs for line in log.read_text().splitlines() if "error[" in line and "[peer]" not in line]


def result_of(directory: Path) -> Result:
    return Result(hashes_of(directory), chain_of(directory), measured(directory))


def boundaries(kind: str, spec=None) -> list[tuple[str, str]]:
    """Every place of a checkpoint, as faults name it, with before and after its publication."""
    spec = spec or KINDS[kind].spec
    if kind != "ppo":
        return [(str(step), when) for step in range(1, spec.steps + 1) for when in ("before", "after")]
    parts = 1 + spec.ppo_epochs
    units = range(1, spec.episodes // spec.rollout_batch * parts + 1)
    places = [f"{unit // parts}-{unit % parts}" if unit % parts else str(unit // parts) for unit in units]
    return [(place, when) for place in places for when in ("before", "after")]
