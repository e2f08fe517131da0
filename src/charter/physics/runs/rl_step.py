"""Seconds of one reinforcement-learning step from its phases, for many configurations at once.

One after another on the same accelerators (`sync`): generate, score, update, hand the weights over. Side by side
(`one-step-off`, `async`): the slower of both sides, then the weights; the policy that generates is one step (or a few)
older than the one that learns, which costs no time and is not judged here. Sources: HybridFlow (arXiv:2409.19256),
ReaL (arXiv:2406.14088), AReaL (arXiv:2505.24298).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.constants import constant
from charter.physics.terms import TermColumn, TermTable

DIRECT_REFIT = 0.5
"""Time of a broadcast to other accelerators over that of buckets staged on one's own (judgement)."""


@dataclass(frozen=True, kw_only=True)
class RlConstants:
    """Constants of a step beside its phases, and the ratio of its phases to plain generation and training."""

    generation_factor: Array = constant(
        1.1, sigma=0.3, unit="factor", source="judgement: engines inside a training loop start cold every step"
    )
    score_factor: Array = constant(1.0, sigma=0.25, unit="factor", source="forward passes; 1 until measured")
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
    move: Array = field(default_factory=lambda: array(0.0))
    """Seconds in which roles go to host memory and come back, where only the one at work is on the device."""


def generate_seconds(phases: RlPhases, constants: RlConstants) -> Array:
    """Seconds of generation, repeated draws included."""
    draws = np.where(phases.resamples > 0, constants.resampling, 1.0)
    return array(phases.generate * constants.generation_factor * draws * constants.unmodelled)


def rl_step_terms(phases: RlPhases, constants: RlConstants) -> TermTable:
    """Seconds of one step; of two sides that run together only what the slower one takes longer is counted."""
    generate = generate_seconds(phases, constants)
    score = phases.score * constants.score_factor * constants.unmodelled
    update = phases.update * constants.update_factor * constants.unmodelled
    direct = (phases.side_by_side > 0) | (phases.separate > 0)
    refit = phases.refit_bytes / constants.refit_bytes_per_second * np.where(direct, DIRECT_REFIT, 1.0)
    hidden = np.where(phases.side_by_side > 0, np.minimum(generate, score + update), 0.0)
    rest = constants.overhead_seconds * phases.overhead + constants.colocation_seconds * phases.colocated
    moved = (_column("offload", array(phases.move), "bytes out and back / host link", "judgement (device_columns.py)"),)
    return TermTable(
        columns=(
            _column("generate", generate - hidden, "rollout, less what hides beside training", "serving/decode.py"),
            _column(
                "score",
                array(score),
                "forward passes of reference, policy, reward, value",
                "serving/passes.py",
            ),
            _column("update", array(update), "optimizer steps of policy and critic", "training/step_time.py"),
            _column("weight sync", array(refit), "2 B x parameters / refit rate", "judgement (rl_step.py)"),
            *(moved if np.any(phases.move > 0) else ()),
            _column("other", array(rest), "rewards, data, logging; engine wakes and sleeps", "judgement (rl_step.py)"),
        )
    )


def _column(name: str, values: Array, formula: str, source: str) -> TermColumn:
    return TermColumn(name=name, part=name, values=values, unit="seconds", formula=formula, source=source)
