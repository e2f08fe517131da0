"""Which module runs which kind of stage."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

STAGE_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "pretrain": "charter.train.pretrain",
        "sft": "charter.train.sft",
        "judge": "charter.train.judge",
        "critique": "charter.feedback.critique",
        "label": "charter.feedback.label",
        "preference_model": "charter.train.preference_model",
        "dpo": "charter.train.dpo",
        "ppo": "charter.train.ppo",
        "eval": "charter.evaluate.run",
    }
)

MODELS_MODULE = "charter.models.preload"
"""Imports what loading a model imports."""


def preloaded_modules(stage_modules: Iterable[str]) -> list[str]:
    """What a stage server imports once for all its stages.

    >>> preloaded_modules(["charter.train.sft", "charter.train.sft"])
    ['charter.models.preload', 'charter.train.sft']
    >>> preloaded_modules(["another_stage"])
    ['another_stage']
    """
    modules = set(stage_modules)
    return sorted(modules | {MODELS_MODULE} if modules & set(STAGE_MODULES.values()) else modules)


def stage_command(module: str, stage_dir: Path) -> list[str]:
    """The command of a stage as a process of its own, the same on every engine.

    >>> stage_command("charter.train.sft", Path("D"))[1:]
    ['-m', 'charter.train.sft', '--stage-dir', 'D']
    """
    return [sys.executable, "-m", module, "--stage-dir", str(stage_dir)]
