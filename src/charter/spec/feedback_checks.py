"""Values of the stages that ask models for text and labels, which have the right type but cannot work. Pure."""

from collections.abc import Iterator

from charter.errors import Problem
from charter.spec.ranges import AT_LEAST_ONE, NOT_NEGATIVE, SHARE, Range, check_ranges
from charter.spec.stage import CritiqueStage, GenerateStage, LabelStage

_CLAMP: Range = (lambda value: 0 < value < 0.5, "must be above 0 and below 0.5")
_LABEL: tuple[tuple[str, Range], ...] = (
    ("principles_per_pair", AT_LEAST_ONE),
    ("reasoning_tokens", AT_LEAST_ONE),
    ("clamp", _CLAMP),
    ("few_shot", NOT_NEGATIVE),
    ("votes", NOT_NEGATIVE),
    ("max_invalid_share", SHARE),
)


def check_critique(stage: CritiqueStage, path: str) -> Iterator[Problem]:
    """Problems of a critique stage."""
    yield from check_ranges(stage, path, [("revisions", AT_LEAST_ONE), ("few_shot", NOT_NEGATIVE)])
    yield from _check_demonstrations(stage, path, "worked critiques")


def check_generate(stage: GenerateStage, path: str) -> Iterator[Problem]:
    """Problems of a generate stage."""
    yield from check_ranges(stage, path, [("answers_per_prompt", AT_LEAST_ONE), ("few_shot", AT_LEAST_ONE)])
    if stage.makes == "prompts" and stage.num_prompts is None:
        hint = "add  num_prompts: 10_000"
        yield Problem(message="how many new prompts are to be made?", path=f"{path}.num_prompts", hint=hint)
    if stage.makes == "answers" and stage.answers_per_prompt > 1 and stage.temperature == 0:
        message = f"at temperature 0 all {stage.answers_per_prompt} answers to a prompt are the same"
        yield Problem(message=message, path=f"{path}.answers_per_prompt", hint="raise temperature")


def check_label(stage: LabelStage, path: str) -> Iterator[Problem]:
    """Problems of a label stage."""
    yield from check_ranges(stage, path, _LABEL)
    yield from _check_demonstrations(stage, path, "judged pairs")
    sampled = {"policy": stage.policy, "prompts": stage.prompts, "pairs": stage.pairs}
    given = [name for name, value in sampled.items() if value]
    missing = [name for name in sampled if name not in given]
    if given and missing:
        message = f"sampling pairs needs policy, prompts and pairs; {' and '.join(missing)} missing"
        yield Problem(message=message, path=path, hint=f"add {missing[0]}, or remove {' and '.join(given)}")
    elif not given and not stage.candidates:
        hint = "give candidates (answers that exist), or policy, prompts and pairs (answers to sample)"
        yield Problem(message="has nothing to label", path=path, hint=hint)
    if stage.format != "multiple_choice":
        for name in ("chain_of_thought", "few_shot"):
            if getattr(stage, name):
                message = f"is for questions that show both answers; the format is {stage.format}"
                yield Problem(message=message, path=f"{path}.{name}", hint="use format: multiple_choice")


def _check_demonstrations(stage: CritiqueStage | LabelStage, path: str, what: str) -> Iterator[Problem]:
    if stage.few_shot and stage.demonstrations is None:
        message = f"{stage.few_shot} examples are to be shown, but `demonstrations` names no data set of {what}"
        yield Problem(message=message, path=f"{path}.few_shot")
    if stage.demonstrations is not None and not stage.few_shot:
        message = "names a data set of which nothing is shown"
        yield Problem(message=message, path=f"{path}.demonstrations", hint="add  few_shot: 4")
