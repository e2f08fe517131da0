"""Presets: `preset: cai` stands for a whole pipeline, written out in `templates/presets/cai.yaml`.

What the user writes under `pipeline` goes over the preset field by field; `stage: null` leaves a stage out. A
preset never brings models or data: what it needs and does not find is one clear error.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from charter.errors import Problem
from charter.spec.suggest import did_you_mean
from charter.spec.yaml_source import Document, parse_document, read_document

PRESETS = ("cai", "rlaif", "rlaif-direct", "sft-dpo")


@cache
def preset_text(name: str) -> str:
    """The YAML file of a preset, comments included."""
    return resources.files("charter.templates").joinpath("presets", f"{name}.yaml").read_text("utf-8")


def preset_contents(name: str) -> dict[str, Any]:
    """`summary`, `deviations`, `needs` and `pipeline` of a preset, read anew each time (the caller may change it)."""
    return parse_document(preset_text(name), origin=f"preset {name}").value


def deviation_lines(path: Path, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the deviations of a project's file from the paper of its preset, a heading first; none without a preset.

    The file is one that has been loaded without an error.
    """
    chosen = [item.removeprefix("preset=") for item in overrides if item.startswith("preset=")]
    path = path / "charter.yaml" if path.is_dir() else path
    name = chosen[-1] if chosen else read_document(path).value.get("preset")
    if name not in PRESETS:
        return ()
    contents = preset_contents(name)
    heading = f"preset {name}, {contents['summary'].rpartition('(')[2].rstrip(')')}; it differs from the paper:"
    return (heading, *(f"  - {text}" for text in contents["deviations"]))


def expand_preset(document: Document) -> tuple[str | None, list[Problem]]:
    """Replace `preset: NAME` by the pipeline that it stands for; returns the name of the preset."""
    if "preset" not in document.value:
        return None, []
    name = document.value.pop("preset")
    if name is None:
        return None, []
    if name not in PRESETS:
        problem = document.problem(("preset",), f"no preset is called {name!r}", hint=did_you_mean(str(name), PRESETS))
        document.value.setdefault("pipeline", {})
        return None, [problem]
    own = document.value.get("pipeline")
    if own is not None and not isinstance(own, dict):
        return name, []
    document.value["pipeline"] = _merge(preset_contents(name)["pipeline"], own or {})
    for stage in document.value["pipeline"]:
        document.marks.setdefault(("pipeline", stage), document.mark(("preset",)))
    return name, []


def _merge(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's stages with the user's fields over them, then the user's further stages."""
    merged: dict[str, Any] = {}
    for name in (*preset, *(name for name in own if name not in preset)):
        own_settings = own.get(name, {})
        if own_settings is None and name in preset:
            continue
        base = preset.get(name, {})
        same_kind = isinstance(own_settings, dict) and own_settings.get("kind", base.get("kind")) == base.get("kind")
        merged[name] = {**base, **own_settings} if same_kind else own_settings
    return merged


def missing_needs(document: Document, name: str) -> dict[str, Problem]:
    """Models and data that the expanded stages name and the file does not define, each with what to add."""
    problems: dict[str, Problem] = {}
    used = _texts(document.value.get("pipeline"))
    for section, needs in preset_contents(name)["needs"].items():
        table = document.value.get(section)
        defined = table if isinstance(table, dict) else {}
        for need, description in needs.items():
            if need in used and need not in defined:
                example = "meta-llama/Llama-3.1-8B" if section == "models" else f"{need}.jsonl"
                problems[need] = document.problem(
                    ("preset",),
                    f"preset {name!r} needs an entry {need!r} under `{section}`: {description}",
                    hint=f"add  {section}: {{{need}: {example}}}",
                )
    return problems


def _texts(value: Any) -> set[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        return {value}
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for item in items for text in _texts(item)}
