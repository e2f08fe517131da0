"""A finished stage as a directory for others: the model, a card that says what it is, and what it cost.

A language model is copied file by file, checked by hash before and after. A preference model becomes the
`...ForSequenceClassification` of its family: the head's weights go in as `score.weight`, the language model's own head
is left out, and not one byte of any other tensor changes. Those classes have no bias in the head and know no
normalisation, so both are returned, to be said.
"""

import contextlib
import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.durable import json_text, make_dir, read_json, write_file
from charter.artifacts.fingerprint import files_under, sha256_file
from charter.artifacts.record import OUTPUTS, Record, damaged_output, read_record
from charter.artifacts.safetensors_file import StoredTensor, differing_tensors, read_header, write_tensors
from charter.artifacts.whole_dir import check_target, publish_dir
from charter.errors import CharterError, DataError, UsageError
from charter.ledger.account import Accounted
from charter.ledger.call import CallSums
from charter.ledger.focus import usage_sums
from charter.ledger.store import Ledger, has_ledger, ledger_place
from charter.report.results import interval_text, value_text
from charter.run.graph import Pipeline, PlannedStage, build_pipeline
from charter.run.paths import run_dir
from charter.run.staleness import assess
from charter.spec.project import Project
from charter.spec.sections import trackers_of
from charter.spec.stage_base import MODEL
from charter.tracking.journal import card_path

UNKNOWN_LICENCE = "unknown"
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
HEAD_SETTINGS, HEAD_WEIGHTS = "charter_head.json", "charter_head.safetensors"
SCORE = "score.weight"
_CAUSAL, _CLASSIFIER = "ForCausalLM", "ForSequenceClassification"


@dataclass(frozen=True, kw_only=True)
class ScoreMeaning:
    """Way from an exported preference model's output (its `logits`) to its score."""

    pooling: str
    bias: float
    mean: float
    deviation: float


def licence_text(licence: str) -> str:
    """Return the words of a card on the licence that was given."""
    if licence != UNKNOWN_LICENCE:
        return f"{licence}, as given to `charter artifacts export`.\n"
    return "Not known. It follows from the licences of the models and data above; give it with `--license`.\n"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell_text(cell) for cell in line) + " |\n" for line in lines)


def cell_text(value: object) -> str:
    """A value inside a table cell: nothing in it can end the cell or the line."""
    return str(value).replace("|", "\\|").replace("\n", " ").replace("\r", " ").replace("<", "&lt;")


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
        inputs_table(record),
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


def inputs_table(record: Json) -> str:
    """The inputs of a stage with their fingerprints, and its constitution where it has one."""
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


CARD, COST = "README.md", "cost.json"
SCHEMA = "charter.export_cost/1"


def export_stage(project: Project, root: Path, name: str, target: Path, *, licence: str = UNKNOWN_LICENCE) -> Record:
    """Write a finished stage's model, its card and its cost to a directory that does not exist yet."""
    pipeline = build_pipeline(project, root)
    stage = pipeline.stage(name)
    record = record_of_finished(stage, root)
    check_target(target)
    check_outputs(stage.directory, record)

    def write(path: Path) -> None:
        score = copy_model(stage.directory, record, path)
        card = model_card(
            record.to_json(), figures=figures_about(pipeline, record.fingerprint), score=score, licence=licence
        )
        (path / CARD).write_text(card, encoding="utf-8")
        attempts, calls = _spent(root, stage, project.storage.ledger)
        (path / COST).write_text(json_text(cost_of(stage, attempts, calls)), encoding="utf-8")

    publish_dir(target.resolve(), write)
    return record


def figures_about(pipeline: Pipeline, fingerprint: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The figures of every finished evaluation that read a stage of this fingerprint."""
    figures = {}
    for name, stage in pipeline.stages.items():
        record = read_record(stage.directory) if stage.spec.kind == "eval" else None
        if record is None:
            continue
        read = {item["fingerprint"] for items in record.inputs.values() for item in items}
        path = stage.directory / OUTPUTS / "results.json"
        if fingerprint in read and path.exists():
            figures[name] = read_json(path).get("figures", [])
    return figures


def cost_of(stage: PlannedStage, accounted: Sequence[Accounted], calls: CallSums) -> Mapping[str, Any]:
    """Return the cost of a stage's attempts together; no dollars where none of them has a price."""
    costs = [item.cost_micro_usd for item in accounted if item.cost_micro_usd is not None]
    return {
        "schema": SCHEMA,
        "stage": stage.name,
        "fingerprint": stage.fingerprint,
        "attempts": len(accounted),
        "seconds": sum(item.attempt.duration_milliseconds for item in accounted) / 1000,
        "lost_seconds": sum(item.lost_milliseconds for item in accounted) / 1000,
        "usd": sum(costs) / 1e6 if costs else None,
        "calls": calls.requests,
        "calls_usd": calls.settled_micro_usd / 1e6,
        "calls_usd_most": calls.most_micro_usd / 1e6,
    }


def record_of_finished(stage: PlannedStage, root: Path) -> Record:
    """The record of a stage; a UsageError says why there is none."""
    verdict = assess(stage, root)
    record = read_record(stage.directory)
    if not verdict.done or record is None:
        raise UsageError(f"stage {stage.name} is {verdict.state} ({verdict.why}); `charter run` finishes it")
    return record


def _spent(root: Path, stage: PlannedStage, server: str | None) -> tuple[Sequence[Accounted], CallSums]:
    """Attempts and calls of a stage under its fingerprint."""
    place = ledger_place(run_dir(root), server)
    if not has_ledger(place):
        return (), CallSums()
    with Ledger.open(place, create=False) as ledger:
        accounted = [item for item in ledger.accounted() if item.attempt.fingerprint == stage.fingerprint]
        return accounted, usage_sums(item for item in ledger.usage() if item.fingerprint == stage.fingerprint)


class CardWriter:
    """Listens to the events of a run; a stage that is done gives cards to the models that are known then.

    An evaluation changes the card of the model that it read. A card that cannot be written is left out: it is for
    readers, and stops no run.
    """

    def __init__(self, project: Project, root: Path) -> None:
        self._project, self._root = project, root
        self._wanted = bool(trackers_of(project.tracking))

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Write cards after `stage_done`, where a tracker is named."""
        if self._wanted and event.get("event") == "stage_done":
            with contextlib.suppress(CharterError, OSError, KeyError):
                write_cards(self._project, self._root)


def write_cards(project: Project, root: Path) -> list[Path]:
    """Write the card of every finished stage that makes a model, where it is new or has changed."""
    pipeline = build_pipeline(project, root)
    written = []
    for stage in pipeline.stages.values():
        record = read_record(stage.directory) if stage.spec.MAKES == MODEL else None
        if record is None:
            continue
        text = model_card(record.to_json(), figures=figures_about(pipeline, record.fingerprint))
        path = card_path(run_dir(root), stage.directory.name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            make_dir(path.parent)
            write_file(path, text)
            written.append(path)
    return written


def check_outputs(stage_dir: Path, record: Record) -> None:
    """Refuse to export outputs that are not as they were recorded, or hold no model."""
    if not any(name.startswith(f"{MODEL}/") for name in record.outputs):
        raise DataError(f"stage {record.stage} ({record.kind}) made no model; export a stage that trains one")
    if (wrong := damaged_output(stage_dir, record, thorough=True)) is not None:
        raise DataError(f"stage {record.stage}: outputs damaged: {wrong}\n  `charter run` publishes them again")


def copy_model(stage_dir: Path, record: Record, target: Path) -> ScoreMeaning | None:
    """Fill an empty directory with the model; what its score means where it is a preference model."""
    source = stage_dir / OUTPUTS / MODEL
    if (source / HEAD_SETTINGS).exists():
        return _copy_preference_model(source, target)
    for relative in files_under(source):
        _copy(source / relative, target / relative)
        if sha256_file(target / relative) != record.outputs[f"{MODEL}/{relative}"]:
            raise DataError(f"{relative} changed while it was copied; check the disk and export again")
    return None


def _copy_preference_model(source: Path, target: Path) -> ScoreMeaning:
    config = _classifier_config(json.loads((source / CONFIG).read_text(encoding="utf-8")), source)
    weights = [name for name in files_under(source) if name.endswith(".safetensors") and name != HEAD_WEIGHTS]
    for relative in files_under(source):
        if relative not in {*weights, CONFIG, INDEX, HEAD_WEIGHTS}:
            _copy(source / relative, target / relative)
    (target / CONFIG).write_text(durable.json_text(config), encoding="utf-8")
    head = read_header(source / HEAD_WEIGHTS)
    places: dict[str, str] = {}
    for relative in weights:
        tensors = {
            name: item for name, item in read_header(source / relative).items() if not name.startswith("lm_head.")
        }
        if relative == weights[-1]:
            tensors[SCORE] = head["weight"]
        write_tensors(target / relative, tensors)
        places |= dict.fromkeys(tensors, relative)
    if len(weights) > 1:
        total_size = sum(item.size_bytes for name in weights for item in read_header(target / name).values())
        index = {"metadata": {"total_size": total_size}, "weight_map": places}
        (target / INDEX).write_text(durable.json_text(index), encoding="utf-8")
    changed = differing_tensors([source / name for name in weights], [target / name for name in weights])
    if changed or read_header(target / weights[-1])[SCORE].read() != head["weight"].read():
        raise DataError(f"{', '.join(changed) or SCORE} changed while it was copied; check the disk and export again")
    settings = json.loads((source / HEAD_SETTINGS).read_text(encoding="utf-8"))
    return _meaning(settings, head["bias"])


def _classifier_config(config: dict[str, Any], source: Path) -> dict[str, Any]:
    named = [str(name) for name in config.get("architectures") or ()]
    if len(named) != 1 or not named[0].endswith(_CAUSAL):
        raise DataError(f"{source / CONFIG}: cannot make a classifier of {', '.join(named) or 'no architecture'}")
    if config.get("pad_token_id") is None:
        raise DataError(f"{source / CONFIG} names no pad_token_id, by which the last token is found")
    return {
        **config,
        "architectures": [named[0].removesuffix(_CAUSAL) + _CLASSIFIER],
        "num_labels": 1,
        "id2label": {"0": "score"},
        "label2id": {"score": 0},
    }


def _meaning(settings: Mapping[str, Any], bias: StoredTensor) -> ScoreMeaning:
    if bias.dtype != "F32":
        raise DataError(f"{bias.file}: the head's bias is {bias.dtype}, where F32 is expected")
    return ScoreMeaning(
        pooling=str(settings["pooling"]),
        bias=struct.unpack("<f", bias.read())[0],
        mean=float(settings["score_mean"]),
        deviation=float(settings["score_deviation"]),
    )


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
