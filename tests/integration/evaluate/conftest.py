"""The tiny models and the workshop of the feedback tests, and an eval stage made of them."""

import json

import pytest

torch = pytest.importorskip("torch")

from charter.evaluate import run
from charter.spec.stage import EvalStage

from ..feedback.conftest import (  # noqa: F401
    models,
    one_thread,
    pair_rows,
    policy,
    prompt_rows,
    tokenizer,
    workshop,
)

SAMPLING = {"max_new_tokens": 8, "min_new_tokens": 8, "max_prompt_tokens": 60, "rollout_batch": 4}


@pytest.fixture
def measured(workshop):  # noqa: F811
    """Runs an eval stage and gives its results and its figures by key."""

    def measure(name, suites, *, data, models, **fields):  # noqa: F811
        spec = EvalStage(policy="p", suites=suites, **{**SAMPLING, **fields})
        files = {role: workshop.data(f"{name}-{role}", rows) for role, rows in data.items()}
        stage = workshop.stage(name, spec, data=files, **models)
        run.run(stage)
        content = json.loads((stage.outputs / "results.json").read_text())
        return content, {figure["key"]: figure for figure in content["figures"]}

    return measure


def in_their_intervals(figures):
    """Whether every figure has an interval that holds it, and the rows it was measured on."""
    return all(f["low"] <= f["value"] <= f["high"] and f["n"] >= 1 and f["method"] for f in figures.values())
