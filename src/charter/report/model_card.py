"""The README of an exported model, pure: what it is, what it was made from, how it did, what is not known."""

from collections.abc import Mapping, Sequence
from typing import Any

from charter.artifacts.export import ScoreMeaning
from charter.report.card_parts import UNKNOWN_LICENCE, cell_text, licence_text, markdown_table
from charter.report.results import interval_text, value_text

Json = Mapping[str, Any]


def model_card(
    record: Json,
    *,
    figures: Mapping[str, Sequence[Json]],
    score: ScoreMeaning | None = None,
    licence: str = UNKNOWN_LICENCE,
) -> str:
    """The text of README.md; `record` is the stage's record, `figures` those of each evaluation that read it."""
    parts = [
        _front_matter(score, licence),
        f"# {record['stage']} ({record['kind']})\n",
        f"Trained by Charter {record['versions'].get('charter', '?')} in a stage of kind `{record['kind']}`, "
        f"{record['step']:,} steps. Fingerprint of the stage: `{record['fingerprint']}`.\n",
        *(["## What its score means\n", _score_text(score)] if score else []),
        "## Made from\n",
        _inputs_table(record),
        "## Settings\n",
        _settings_table(record),
        *_results(figures),
        "## Versions and machine\n",
        markdown_table(("What", "Value"), [*record["versions"].items(), *record["frozen"].items()]),
        *(["## Notes\n", "".join(f"- {cell_text(note)}\n" for note in record["notes"])] if record.get("notes") else []),
        "## Licence\n",
        licence_text(licence),
    ]
    return "\n".join(parts)


def _front_matter(score: ScoreMeaning | None, licence: str) -> str:
    task = "text-classification" if score else "text-generation"
    return f"---\nlicense: {licence}\nlibrary_name: transformers\npipeline_tag: {task}\ntags: [charter]\n---\n"


def _score_text(score: ScoreMeaning) -> str:
    words = (
        "`AutoModelForSequenceClassification` gives one logit per text, higher is better. Charter's own score is "
        f"`logit + {score.bias!r}` (its head has a bias, that class has none), and its reward is that score minus "
        f"{score.mean!r}, divided by {score.deviation!r} (mean and deviation on the training pairs).\n"
    )
    if score.pooling == "last":
        return words + "The logit is read at the last token that is not padding: end the text with the answer's last.\n"
    return words + (
        f"\n**The logit is not this model's score**: the model was trained with the pooling `{score.pooling}` over the "
        "answer, and that class reads the last token. Average the per-token values to get the score.\n"
    )


def _inputs_table(record: Json) -> str:
    rows = [
        (role, item["name"], item["source"], f"`{item['fingerprint']}`")
        for role, items in sorted(record["inputs"].items())
        for item in items
    ]
    if (constitution := record["identity"].get("constitution")) is not None:
        rows.append(("constitution", "constitution", "file", f"`{constitution}`"))
    return markdown_table(("Role", "Name", "Kind", "Fingerprint (SHA-256)"), rows)


def _settings_table(record: Json) -> str:
    identity = record["identity"]
    spec = {**identity.get("spec", {}), "seed": identity.get("seed")}
    return markdown_table(("Setting", "Value"), [(name, value) for name, value in sorted(spec.items())]) + (
        "\nSettings that are not listed have the defaults of this version.\n"
    )


def _results(figures: Mapping[str, Sequence[Json]]) -> list[str]:
    if not figures:
        return ["## Results\n", "No evaluation has read this model.\n"]
    parts = ["## Results\n"]
    for stage, stage_figures in figures.items():
        rows = [
            (
                item.get("label") or item.get("key"),
                value_text(item),
                interval_text(item),
                item.get("n") or "",
            )
            for item in stage_figures
        ]
        parts += [
            f"By stage {stage}, on held-out data:\n",
            markdown_table(("Figure", "Value", "95 % interval", "n"), rows),
        ]
    return parts
