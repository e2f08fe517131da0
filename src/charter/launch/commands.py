"""Modules that run the kinds of stages."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from charter.spec.stage import is_hosted
from charter.spec.stage_base import Stage

STAGE_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "prepare": "charter.feedback.prepare",
        "pretrain": "charter.train.pretrain",
        "sft": "charter.train.sft",
        "judge": "charter.train.judge",
        "generate": "charter.feedback.generate",
        "critique": "charter.feedback.critique",
        "label": "charter.feedback.label",
        "preference_model": "charter.train.preference_model",
        "dpo": "charter.train.dpo",
        "ppo": "charter.train.ppo",
        "eval": "charter.evaluate.run",
    }
)

HOSTED_MODULE = "charter.hosted.run"
"""Runs a stage that another engine computes."""
MODELS_MODULE = "charter.models.preload"
"""Imports what loading a model imports."""
WITHOUT_MODELS = frozenset({"charter.feedback.prepare"})
"""Stages that load none."""
_WITH_MODELS = {HOSTED_MODULE, *STAGE_MODULES.values()} - WITHOUT_MODELS


def module_of(stage: Stage, modules: Mapping[str, str] = STAGE_MODULES) -> str:
    """The module that runs a stage; `modules` are those of the native engine, by kind.

    >>> from charter.spec.stage import SftStage
    >>> module_of(SftStage(init="b", data=("d",), engine="trl"))
    'charter.hosted.run'
    """
    return HOSTED_MODULE if is_hosted(stage) else modules[stage.kind]


def preloaded_modules(stage_modules: Iterable[str], *, with_models: bool = True) -> list[str]:
    """Return the modules that a stage server imports once for all stages; `with_models` where one loads weights.

    >>> preloaded_modules(["charter.train.sft", "charter.train.sft"])
    ['charter.models.preload', 'charter.train.sft']
    >>> preloaded_modules(["another_stage"])
    ['another_stage']
    """
    modules = set(stage_modules)
    models = {MODELS_MODULE} if with_models and modules & _WITH_MODELS else set()
    return sorted(modules | models)


def stage_command(module: str, stage_dir: Path) -> list[str]:
    """The command of a stage as a process of its own, the same on every engine.

    >>> stage_command("charter.train.sft", Path("D"))[1:]
    ['-m', 'charter.train.sft', '--stage-dir', 'D']
    """
    return [sys.executable, "-m", module, "--stage-dir", str(stage_dir)]
