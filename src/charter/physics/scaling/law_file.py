"""A fitted law as JSON: what `charter plan scale fit` writes and `predict` and `plan` read."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from charter.errors import DataError
from charter.physics.scaling.fitted import FittedLaw, Range
from charter.physics.scaling.isoflop import Valley
from charter.physics.scaling.laws import KaplanLaw, Law, ParametricLaw
from charter.physics.scaling.study import HeldBack, Study

SCHEMA = "charter.scaling-law/1"
FORMS: dict[str, type[ParametricLaw] | type[KaplanLaw]] = {"chinchilla": ParametricLaw, "kaplan": KaplanLaw}


def study_json(study: Study, *, source: str) -> dict[str, Any]:
    """Everything of a study; `read_law` needs the first half, the rest is for people and charts."""
    fitted = study.fitted
    constants = constants_of(fitted.law.form)
    return {
        "schema": SCHEMA,
        "form": fitted.law.form,
        "source": source,
        "constants": {name: getattr(fitted.law, name) for name in constants},
        "bands": {
            name: {"p10": band.p10, "p90": band.p90}
            for name in constants
            for band in [fitted.band(lambda law, name=name: float(getattr(law, name)))]  # type: ignore[misc]
        },
        "draws": [[getattr(draw, name) for name in constants] for draw in fitted.draws],
        "noise": fitted.noise,
        "range": {name: list(getattr(fitted.fitted_on, name)) for name in ("parameters", "tokens", "compute_flops")},
        "learning_rate": fitted.learning_rate,
        "batch_tokens": fitted.batch_tokens,
        "runs": [
            {"parameters": run.num_parameters, "tokens": run.num_tokens, "loss": run.loss, "flops": run.compute_flops}
            for run in study.runs
        ],
        "held_back": [_held_back(item) for item in study.held_back],
        "isoflop": {
            "size_exponent": study.envelope.size_exponent,
            "size_coefficient": study.envelope.size_coefficient,
            "budgets": [_budget(valley) for valley in study.envelope.valleys],
        },
        "other_form": None if study.other is None else {"form": study.other[0], "rms": study.other[1]},
    }


def _held_back(item: HeldBack) -> dict[str, Any]:
    return {
        "parameters": item.run.num_parameters,
        "tokens": item.run.num_tokens,
        "measured": item.run.loss,
        "predicted": item.predicted,
        "p10": item.p10,
        "p90": item.p90,
        "error": item.error,
        "extrapolation": item.extrapolation,
        "inside": item.inside,
    }


def _budget(valley: Valley) -> dict[str, Any]:
    return {
        "flops": valley.compute_flops,
        "runs": valley.num_runs,
        "parameters": valley.best_parameters,
        "tokens": valley.best_tokens,
        "loss": valley.loss,
        "inside": valley.inside,
    }


def read_law(text: str, file: str) -> FittedLaw:
    """The law of a file; DataError when it is not one."""
    try:
        document = json.loads(text)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']!r}, not {SCHEMA!r}")
        form, constants, source = document["form"], document["constants"], str(document["source"])
        limits = document["range"]
        return FittedLaw(
            law=_law(form, [constants[name] for name in constants_of(form)], source),
            draws=tuple(_law(form, row, source) for row in document["draws"]),
            noise=float(document["noise"]),
            fitted_on=Range(
                parameters=_pair(limits["parameters"]),
                tokens=_pair(limits["tokens"]),
                compute_flops=_pair(limits["compute_flops"]),
            ),
            learning_rate=_pair(document["learning_rate"]) if document.get("learning_rate") else None,
            batch_tokens=_pair(document["batch_tokens"]) if document.get("batch_tokens") else None,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is not a scaling law ({error}); `charter plan scale fit FILE.csv` writes one"
        ) from None


def constants_of(form: str) -> list[str]:
    """The constants of a form, in the order of its formula."""
    return [item.name for item in fields(FORMS[form]) if item.name != "source"]


def _law(form: str, values: list[float], source: str) -> Law:
    constants: dict[str, Any] = dict(zip(constants_of(form), (float(value) for value in values), strict=True))
    return FORMS[form](**constants, source=source)


def _pair(values: list[float]) -> tuple[float, float]:
    low, high = (float(value) for value in values)
    return low, high
