"""Seconds of whole things: a step of reinforcement learning by algorithm and stack, a run with start and failures."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.constants import constant
from charter.physics.terms import TermColumn, TermTable
from charter.units import SECONDS_PER_HOUR

# -------- Reinforcement learning from feedback: which models an algorithm needs at every step, and how its stack runs
# it.


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
    (r"\bgrpo\b|dr\.? ?grpo|gspo|cispo", GRPO),
    (r"\brloo\b", RLOO),
    (r"reinforce|remax", REINFORCE),
    (r"\bdpo\b|\bipo\b|\bkto\b|simpo|orpo", DPO),
    (r"\bppo\b|\bvapo\b", PPO),
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
    """Name of the generation engine, for `physics.serving_devices.engine_named`."""
    packs: bool = True
    """Sequences are packed, so padding costs nothing."""
    resharding: bool = True
    """Weights are gathered, converted and handed to a separate engine every step."""
    together: int | None = None
    """Answers that a replica decodes as one batch, until the longest ends; None: as many as fit, each leaves as it
    ends."""
    tensor: bool = False
    """Trains with tensor and pipeline parallelism, of degrees that somebody tuned."""
    policy_share: float = 1.0
    """Of the accelerators, those of the policy; value and reward models work beside it on the others."""
    eager_until: str = ""
    """Month of the last releases whose generator issues every operation from Python, as dated versions have it; those
    of a replica over several nodes do so later, too."""
    wakes_in_generation: bool = False
    """Its timer of generation holds the weights' hand-over and the engine's waking, where accelerators are shared."""
    overhead: float = 1.0
    """Seconds per step outside of all phases, over the usual of a system with separate engines."""


_STACKS: tuple[tuple[str, RlStack], ...] = (
    (r"\bcharter\b", RlStack(label="native", engine="charter", packs=False, resharding=False, overhead=0.05)),
    (r"nemo[- ]?rl", RlStack(label="nemo-rl", engine="vllm")),
    (
        # rollout_micro_batch_size of its example gpt_ppo_actor; a server of its own for critic and reward, of half as
        # many nodes as the actor's in five of eight published runs, and as many in three
        r"nemo[- ]?aligner",
        RlStack(label="nemo-aligner", engine="tensorrt-llm", packs=False, tensor=True, together=8, policy_share=2 / 3),
    ),
    # Its FSDP workers' generate_sequences enters the sharding manager, in later releases rollout_mode, by itself.
    # Its rollout.enforce_eager was true by default until mid-2025, and stays so in its example for 671B on 12 nodes.
    (
        r"verl|hybridflow",
        RlStack(label="verl", engine="vllm", wakes_in_generation=True, eager_until="2025-07", overhead=0.7),
    ),
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


# -------- Seconds of one reinforcement-learning step from its phases, for many configurations at once.
#
# One after another on the same accelerators (`sync`): generate, score, update, hand the weights over. Side by side
# (`one-step-off`, `async`): the slower of both sides, then the weights; the policy that generates is one step (or a
# few) older than the one that learns, which costs no time and is not judged here. Sources: HybridFlow
# (arXiv:2409.19256), ReaL (arXiv:2406.14088), AReaL (arXiv:2505.24298).

DIRECT_REFIT = 0.5
"""Time of a broadcast to other accelerators over that of buckets staged on one's own (judgement)."""


@dataclass(frozen=True, kw_only=True)
class RlConstants:
    """Constants of a step beside its phases, and the ratio of its phases to plain generation and training."""

    generation_factor: Array = constant(
        1.1, sigma=0.3, unit="factor", source="judgement: separate engines in a training loop start cold every step"
    )
    score_factor: Array = constant(
        1.0, sigma=0.25, unit="factor", source="forward passes beside updates of the same sequences; 1 until measured"
    )
    update_factor: Array = constant(
        1.1, sigma=0.25, unit="factor", source="judgement: ragged sequences leave ranks waiting"
    )
    resampling: Array = constant(
        1.5, sigma=0.3, unit="batches generated per step of DAPO", source="judgement from arXiv:2503.14476, figure 3"
    )
    refit_bytes_per_second: Array = constant(
        25e9,
        sigma=0.5,
        unit="B/s per accelerator",
        source="every engine receives the whole model in buckets, gathered over the network; judgement",
    )
    overhead_seconds: Array = constant(5.0, sigma=0.6, unit="s", source="rewards, data, logging of one step; judgement")
    colocation_seconds: Array = constant(
        12.0,
        sigma=0.6,
        unit="s",
        source="engine sleeps and wakes, optimizer states leave and return, caches are made again; judgement",
    )
    unmodelled: Array = constant(1.0, sigma=0.15, unit="factor", source="everything else; 1 until measured")

    @property
    def scoring(self) -> Array:
        """Factor on plain forward passes: what makes an update slow (ragged sequences, waiting ranks) does it to both.

        So rows that print an update alone, or a whole step, keep the share that scoring has of it.
        """
        return array(self.score_factor * self.update_factor)


@dataclass(frozen=True, kw_only=True)
class RlPhases:
    """Seconds of the phases of a step as plain generation and plain training would take, and its hand-over."""

    generate: Array
    score: Array
    """Log-probabilities, rewards and values: forward passes over prompts and answers."""
    update: Array
    """Policy and critic, all epochs."""
    refit_bytes: Array
    """16-bit weights of the whole model where a separate engine takes them, else 0."""
    resamples: Array
    side_by_side: Array
    """1 where generation has accelerators of its own and runs beside training."""
    colocated: Array
    """1 where a separate engine takes turns with training on the same accelerators."""
    overhead: Array
    """Factor on the seconds outside of phases."""
    separate: Array = field(default_factory=lambda: array(0.0))
    """1 where generation has accelerators of its own and takes turns with training: weights go straight to them."""
    engine: Array = field(default_factory=lambda: array(1.0))
    """1 where an engine of its own answers, 0 where the training process does."""
    move: Array = field(default_factory=lambda: array(0.0))
    """Seconds in which roles go to host memory and come back, where only the one at work is on the device."""


def generate_seconds(phases: RlPhases, constants: RlConstants) -> Array:
    """Seconds of generation, repeated draws included."""
    draws = np.where(phases.resamples > 0, constants.resampling, 1.0)
    cold = np.where(phases.engine > 0, constants.generation_factor, 1.0)
    return array(phases.generate * cold * draws * constants.unmodelled)


def rl_step_terms(phases: RlPhases, constants: RlConstants) -> TermTable:
    """Seconds of one step; of two sides that run together only what the slower one takes longer is counted."""
    generate = generate_seconds(phases, constants)
    score = phases.score * constants.scoring * constants.unmodelled
    update = phases.update * constants.update_factor * constants.unmodelled
    direct = (phases.side_by_side > 0) | (phases.separate > 0)
    refit = phases.refit_bytes / constants.refit_bytes_per_second * np.where(direct, DIRECT_REFIT, 1.0)
    hidden = np.where(phases.side_by_side > 0, np.minimum(generate, score + update), 0.0)
    rest = constants.overhead_seconds * phases.overhead + constants.colocation_seconds * phases.colocated
    moved = (
        _column("offload", array(phases.move), "bytes out and back / host link", "judgement (physics/devices.py)"),
    )
    return TermTable(
        columns=(
            _column("generate", generate - hidden, "rollout, less what hides beside training", "physics/generation.py"),
            _column(
                "score",
                array(score),
                "forward passes of reference, policy, reward, value",
                "physics/serving_passes.py",
            ),
            _column("update", array(update), "optimizer steps of policy and critic", "physics/step_time.py"),
            _column("weight sync", array(refit), "2 B x parameters / refit rate", "judgement (rl_step.py)"),
            *(moved if np.any(phases.move > 0) else ()),
            _column("other", array(rest), "rewards, data, logging; engine wakes and sleeps", "judgement (rl_step.py)"),
        )
    )


def _column(name: str, values: Array, formula: str, source: str) -> TermColumn:
    return TermColumn(name=name, part=name, values=values, unit="seconds", formula=formula, source=source)


# -------- Hours, accelerator-hours and dollars of a whole run, for many runs at once.
#
# `wall = (steps x step + evaluation + checkpoints) / goodput + start-up`. Goodput is the share of the time a run holds
# its accelerators in which it makes progress: failures, restarts, slow nodes and idle time are the rest.


@dataclass(frozen=True, kw_only=True)
class RunConstants(RlConstants):
    """Constants of a run beside its steps; of a step's constants one factor is left free, since totals show no more."""

    generation_factor: Array = constant(1.1, sigma=0.0, unit="factor", source="rl_step.py")
    score_factor: Array = constant(1.0, sigma=0.0, unit="factor", source="rl_step.py")
    update_factor: Array = constant(1.1, sigma=0.0, unit="factor", source="rl_step.py")
    resampling: Array = constant(1.5, sigma=0.0, unit="batches generated per step of DAPO", source="rl_step.py")
    refit_bytes_per_second: Array = constant(25e9, sigma=0.3, unit="B/s per accelerator", source="rl_step.py")
    overhead_seconds: Array = constant(5.0, sigma=0.0, unit="s", source="rl_step.py")
    colocation_seconds: Array = constant(12.0, sigma=0.0, unit="s", source="rl_step.py")
    unmodelled: Array = constant(1.0, sigma=0.15, unit="factor", source="everything else; 1 until measured")

    goodput: Array = constant(
        0.92,
        sigma=0.03,
        unit="share of the hours",
        source="Llama 3 (arXiv:2407.21783, section 3.3.4): above 90 % effective time at 16k devices",
        most=1.0,
    )
    training_factor: Array = constant(
        1.15,
        sigma=0.1,
        unit="factor on the optimizer step",
        source="judgement: runs keep margins, and the best of a search is better than what was run",
    )
    start_seconds: Array = constant(
        240.0, sigma=0.4, unit="s", source="judgement: containers, loading, tokenisation, compilation, first step"
    )
    side_share: Array = constant(
        0.02, sigma=0.0, unit="share of the steps", source="judgement: evaluation, checkpoints, logging"
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """Runs as columns."""

    step_seconds: Array
    steps: Array
    accelerators: Array
    usd_per_accelerator_hour: Array
    ideal: Array
    """1 where the source leaves failures out."""


def run_terms(run: Run, constants: RunConstants) -> TermTable:
    """Seconds of wall time of a run, term by term.

    >>> run = Run(step_seconds=array(10.0), steps=array(1000.0), accelerators=array(8.0),
    ...           usd_per_accelerator_hour=array(2.0), ideal=array(1.0))
    >>> round(float(run_terms(run, RunConstants()).total))
    10440
    """
    work = run.step_seconds * run.steps
    side = work * constants.side_share
    lost = (1 - run.ideal) * (work + side) * (1 / constants.goodput - 1)
    start = constants.start_seconds + 0.0 * work
    return TermTable(
        columns=(
            _run_column("steps", work, "steps x seconds of a step", "physics/step_time.py, physics/runs.py"),
            _run_column("evaluation and checkpoints", side, "share of the steps", "judgement (run_total.py)"),
            _run_column("lost time", lost, "(1 / goodput - 1) x the rest", "Llama 3, section 3.3.4"),
            _run_column("start", start, "once per run", "judgement (run_total.py)"),
        )
    )


def run_hours(run: Run, constants: RunConstants) -> Array:
    """Hours of wall time."""
    return array(run_terms(run, constants).total / SECONDS_PER_HOUR)


def run_usd(run: Run, hours: Array) -> Array:
    """Dollars: accelerator-hours times their price.

    >>> run = Run(step_seconds=array(1.0), steps=array(1.0), accelerators=array(8.0),
    ...           usd_per_accelerator_hour=array(2.0), ideal=array(1.0))
    >>> float(run_usd(run, array(10.0)))
    160.0
    """
    return array(hours * run.accelerators * run.usd_per_accelerator_hour)


def _run_column(name: str, values: Array, formula: str, source: str) -> TermColumn:
    return TermColumn(name=name, part="run", values=array(values), unit="seconds", formula=formula, source=source)
