"""All kinds of stage, by the name that `kind:` has in charter.yaml."""

from collections.abc import Mapping
from types import MappingProxyType

from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PpoStage,
    PreferenceModelStage,
    PrepareStage,
    PretrainStage,
    SftStage,
    Stage,
)

AnyStage = (
    PrepareStage
    | GenerateStage
    | PretrainStage
    | SftStage
    | JudgeStage
    | CritiqueStage
    | LabelStage
    | PreferenceModelStage
    | PpoStage
    | DpoStage
    | EvalStage
)

STAGE_KINDS: Mapping[str, type[Stage]] = MappingProxyType(
    {
        "prepare": PrepareStage,
        "generate": GenerateStage,
        "pretrain": PretrainStage,
        "sft": SftStage,
        "judge": JudgeStage,
        "critique": CritiqueStage,
        "label": LabelStage,
        "preference_model": PreferenceModelStage,
        "ppo": PpoStage,
        "dpo": DpoStage,
        "eval": EvalStage,
    }
)
TRAINS = frozenset({"pretrain", "sft", "judge", "preference_model", "ppo", "dpo"})
"""Kinds of stage that update weights: their processes work on every step together."""
MAKES_RECORDS = frozenset({"critique", "label", "generate"})
"""Kinds of stage whose batches may be shared by several processes (`resources.shards`)."""
