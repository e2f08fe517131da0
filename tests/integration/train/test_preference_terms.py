"""Margin, label smoothing and centering of a preference model: from the row and the spec to the loss."""

import json
import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny

from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.inference.score import score_rows
from charter.models.preference import PreferenceModel, ScalarModel
from charter.physics.inference_memory import SCORING_ROWS
from charter.spec.stage import PreferenceModelStage
from charter.train import preference_model
from charter.train.encoded_pairs import EncodedPairs
from charter.train.preference_model import pair_loss, score_statistics, shuffled
from charter.train.supervised import Tally

pytestmark = pytest.mark.torch
SETTINGS = {"pooling": "mean", "context": "full", "seq_len": 64, "score_mean": 0.0, "score_deviation": 1.0}
BIAS = 0.75


@pytest.fixture
def model():
    """A model that gives every answer the same score, `BIAS`: its difference is 0, its sum 1.5."""
    language_model = tiny.language_model()
    scalar = ScalarModel(language_model)
    torch.nn.init.constant_(scalar.head.bias, BIAS)
    return PreferenceModel(scalar, language_model, dict(SETTINGS))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, math.log(2)),
        ({"use_margin": True}, math.log(1 + math.exp(2))),
        (
            {"use_margin": True, "label_smoothing": 0.25},
            0.75 * math.log(1 + math.exp(2)) + 0.25 * math.log(1 + math.exp(-2)),
        ),
        ({"center_weight": 0.5}, math.log(2) + 0.5 * 1.5**2),
    ],
)
def test_the_terms_reach_the_loss_of_a_pair(model, changes, wanted):
    pair = replace(tiny.pairs()[0], chosen_probability=1.0, margin=2.0)
    spec = PreferenceModelStage(init="b", data=("d",), dtype="fp32", **changes)
    found = pair_loss(model, EncodedPairs(model, [pair, pair])[:], spec)
    assert found.loss_sum.item() == pytest.approx(2 * wanted, abs=1e-5)
    assert found.terms == 2.0


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_tie_is_half_right_whatever_the_label_says(model, probability):
    pair = replace(tiny.pairs()[0], chosen_probability=probability)
    spec = PreferenceModelStage(init="b", data=("d",), dtype="fp32")
    assert pair_loss(model, EncodedPairs(model, [pair])[:], spec).sums["accuracy"] == 0.5


def test_the_last_scores_take_no_larger_passes_than_training(model, monkeypatch):
    torch.nn.init.normal_(model.scalar.head.weight, generator=torch.Generator().manual_seed(0))
    pairs, sizes = EncodedPairs(model, tiny.pairs()[:8]), []
    longest = max(len(ids) for pair in pairs[:] for ids in pair.ids)

    def scored(model, rows, *further, **named):
        sizes.append(len(rows) * max(map(len, rows)))
        return score_rows(model, rows, *further, **named)

    monkeypatch.setattr(preference_model, "score_rows", scored)
    at_once = score_statistics(model, pairs, dtype="fp32")
    assert len(sizes) == 1
    sizes.clear()
    assert score_statistics(model, pairs, dtype="fp32", budget_tokens=2 * longest) == pytest.approx(at_once)
    assert len(sizes) > 4
    assert max(sizes) <= 2 * longest


def test_scores_are_reported_with_their_least_and_largest(model):
    torch.nn.init.normal_(model.scalar.head.weight, generator=torch.Generator().manual_seed(0))
    pairs = EncodedPairs(model, tiny.pairs()[:4])
    spec = PreferenceModelStage(init="b", data=("d",), dtype="fp32")
    scores = [
        score_rows(model, [ids], [count]).item()
        for pair in pairs
        for ids, count in zip(pair.ids, pair.answer_tokens, strict=True)
    ]
    found = [pair_loss(model, part, spec) for part in (pairs[:1], pairs[1:])]
    sums = found[1].sums
    assert sums["score"].item() == pytest.approx(sum(scores[2:]) / 2, abs=1e-5)
    assert sums["score_margin"].item() == pytest.approx(sum(scores[2::2]) - sum(scores[3::2]), abs=1e-5)
    tally = Tally(torch.device("cpu"))
    for part in found:
        tally.add(part)
    values, extremes = tally.read(tally.vector())
    assert extremes == pytest.approx({"score_min": min(scores), "score_max": max(scores)}, abs=1e-5)
    both = dict(zip(tally.names, values, strict=True))
    assert both["loss_sum"] == sum(part.loss_sum.item() for part in found)
    assert (both["terms"], both["n_pairs"]) == (sum(part.terms for part in found), 4)


def test_a_pair_is_encoded_once(model, monkeypatch):
    pairs = EncodedPairs(model, tiny.pairs()[:2])
    first = pairs[0]
    monkeypatch.setattr("charter.train.encoded_pairs.encode_scored", None)
    assert pairs[0] is first
    with pytest.raises(TypeError):
        pairs[1]


def test_shuffled_margins_go_with_their_labels_and_change_sign_with_the_answers():
    """Margins 1, 2, ... of `chosen`; `Read a book` comes after `No.`, so that every pair is turned round."""
    data = [replace(pair, chosen_probability=0.6 + i / 100, margin=1.0 + i) for i, pair in enumerate(tiny.pairs())]
    mixed = shuffled(data, seed=3)
    assert [pair.margin for pair in mixed] != [-pair.margin for pair in data]
    assert sorted(pair.margin for pair in mixed) == sorted(-pair.margin for pair in data)
    for pair in mixed:
        assert 1 - pair.chosen_probability == pytest.approx(0.6 + (-pair.margin - 1) / 100)
    kept = shuffled([replace(pair, chosen="A", rejected="B") for pair in data], seed=3)
    assert sorted(pair.margin for pair in kept) == sorted(pair.margin for pair in data)


def stage(path, *, margins, **changes):
    tiny.language_model().save(path / "base" / "model")
    (path / "pairs").mkdir()
    rows = [
        {"id": pair.id, "prompt": pair.prompt[0].content, "chosen": pair.chosen, "rejected": pair.rejected}
        | ({"margin": 1.5} if margins else {})
        for pair in tiny.pairs()
    ]
    (path / "pairs" / "records.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    spec = PreferenceModelStage(init="b", data=("d",), steps=1, global_batch=8, seq_len=64, dtype="fp32", **changes)
    return tiny.stage_dir(path / "pm", spec, {"init": path / "base", "data": path / "pairs"})


def first_loss(run):
    preference_model.run(run)
    return json.loads((run.path / "metrics.jsonl").read_text().splitlines()[0])["loss"]


def test_the_spec_of_a_stage_reaches_its_loss(tmp_path):
    """A fresh head scores 0: the first loss is that of a difference of -1.5, labels 0.9 and 0.1."""
    run = stage(tmp_path, margins=True, use_margin=True, label_smoothing=0.1)
    wanted = 0.9 * math.log(1 + math.exp(1.5)) + 0.1 * math.log(1 + math.exp(-1.5))
    assert first_loss(run) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(("micro_batch", "most"), [(0, SCORING_ROWS), (1, 2)])
def test_a_stage_scores_at_its_end_as_it_trained(tmp_path, monkeypatch, micro_batch, most):
    run, sizes = stage(tmp_path, margins=False), []

    def scored(model, rows, *further, **named):
        if not torch.is_grad_enabled():
            sizes.append((len(rows), len(rows) * max(map(len, rows))))
        return score_rows(model, rows, *further, **named)

    monkeypatch.setattr(preference_model, "score_rows", scored)
    write_job(run.path, replace(run.job, frozen={"threads": 1, "device": "cpu", "micro_batch": micro_batch}))
    preference_model.run(StageDir(run.path))
    answers = 2 * len(tiny.pairs())
    assert sum(rows for rows, _ in sizes) == answers
    assert max(tokens for _, tokens in sizes) <= most * 64
    assert (len(sizes) == 1) == (micro_batch == 0)


def test_centering_of_the_spec_reaches_its_loss(tmp_path, monkeypatch):
    seen = []
    loss = preference_model.preference_loss
    monkeypatch.setattr(preference_model, "preference_loss", lambda *a, **k: (seen.append(k), loss(*a, **k))[1])
    assert first_loss(stage(tmp_path, margins=True, center_weight=0.25)) == pytest.approx(math.log(2), abs=1e-5)
    assert {(item["center_weight"], item["margin_B"], item["label_smoothing"]) for item in seen} == {(0.25, None, 0.0)}


def test_a_margin_that_no_row_has_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"use_margin: no row .* has a `margin` above 0"):
        preference_model.run(stage(tmp_path, margins=False, use_margin=True))
