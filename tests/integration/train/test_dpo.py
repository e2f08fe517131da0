"""The DPO stage on a very small real model: what it learns, what it leaves alone, and kills."""

import json
import math
import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import forks
import pytest

torch = pytest.importorskip("torch")

import tiny

from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import (
    Pair,
    Turn,
)
from charter.errors import DataError
from charter.models.language_model import load_language_model
from charter.spec.stage import DpoStage
from charter.train import dpo
from charter.train.encoded_pairs import EncodedDpoPair, encode_dpo_pair

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
SPEC = DpoStage(
    init="b",
    data=("d",),
    steps=6,
    global_batch=4,
    seq_len=64,
    learning_rate=1e-3,
    schedule="constant",
    beta=0.5,
    dtype="fp32",
    checkpoint_every=2,
)
RUN = "import sys, pathlib; from charter.artifacts.stage_dir import StageDir; from charter.train import dpo; "
RUN += "dpo.run(StageDir(pathlib.Path(sys.argv[1])))"


@pytest.fixture
def made(tmp_path):
    """A model, and pairs in which the longer answer was preferred."""
    tiny.language_model().save(tmp_path / "base" / "model")
    rows = [
        {
            "id": pair.id,
            "prompt": pair.prompt[0].content,
            "chosen": pair.chosen,
            "rejected": pair.rejected,
            "chosen_probability": 0.9,
        }
        for pair in tiny.pairs()
    ]
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "records.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return tmp_path


def stage(made, name, spec=SPEC, **changes):
    return tiny.stage_dir(made / name, spec, {"init": made / "base", "data": made / "pairs"}, **changes)


def weights(stage_dir):
    return (stage_dir.outputs / "model" / "model.safetensors").read_bytes()


def metrics(stage_dir):
    return [json.loads(line) for line in (stage_dir.path / "metrics.jsonl").read_text().splitlines()]


def encoded(model, pairs=None, *, max_tokens=64):
    return [encode_dpo_pair(model.tokenizer, pair, max_tokens=max_tokens) for pair in pairs or tiny.pairs()]


def test_both_answers_follow_the_same_prompt_and_are_cut_with_it():
    model = tiny.language_model()
    turns = (Turn("user", "How do I learn about tea? " * 9),)
    pair = Pair("p", turns, "Read a book about tea. " * 9, "No.", 0.9)
    found = encode_dpo_pair(model.tokenizer, pair, max_tokens=40)
    whole = encode_dpo_pair(model.tokenizer, pair, max_tokens=1000)
    assert len(whole.prompt) + len(whole.chosen) > 40
    assert found.chosen == whole.chosen[:30]
    assert found.prompt == whole.prompt[-10:]
    assert (found.rejected, found.chosen_probability) == (whole.rejected, 0.9)
    assert whole.rejected[-1] == model.end_id


def test_log_probabilities_are_of_the_answer_alone_and_padding_does_not_touch_them():
    """Each answer by itself, token by token from a plain log-softmax, against all of them in one padded batch."""
    model = tiny.language_model()
    pairs = encoded(model)
    found = dpo.answer_log_probabilities(model.model, pairs, padding=model.padding_id, dtype="fp32", device=CPU)
    wanted = []
    for pair in pairs:
        for answer in (pair.chosen, pair.rejected):
            ids = [*pair.prompt, *answer]
            logits = model.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            wanted.append(sum(logits[place - 1, ids[place]].item() for place in range(len(pair.prompt), len(ids))))
    assert found.tolist() == pytest.approx(wanted, abs=1e-4)


def test_rewards_are_told_as_sums_over_pairs():
    losses = SimpleNamespace(
        loss_B=torch.tensor([0.5, 0.25, 1.0]),
        chosen_reward_B=torch.tensor([1.0, 0.0, 2.0]),
        rejected_reward_B=torch.tensor([0.5, 1.0, -1.0]),
    )
    pairs = [EncodedDpoPair((1, 2, 3), (4,) * count, (5, 6), 0.5) for count in (1, 2, 4)]
    found = dpo.summed_loss(losses, torch.tensor([0.9, 0.2, 0.3]), pairs)
    # margins 0.5, -1 and 3; labels say chosen, rejected, rejected: two are right
    assert found.loss_sum.item() == 1.75
    assert found.terms == 3.0
    assert found.sums == {"accuracy": 2.0, "reward_margin": 2.5, "chosen_reward": 3.0, "rejected_reward": 0.5}
    assert found.counters == {"pairs": 3, "tokens": 3 * 2 * 3 + 7 + 6}
    assert found.logits == 7 + 6


def test_the_loss_starts_at_log_two_and_a_split_batch_adds_up():
    model, reference = tiny.language_model(), tiny.language_model()
    pairs = encoded(model)

    def loss(part):
        return dpo.pairs_loss(
            model.model, reference.model, part, SPEC, padding=model.padding_id, device=CPU
        ).loss_sum.item()

    assert loss(pairs) == pytest.approx(len(pairs) * 0.693147, abs=1e-4)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.mul_(1.1)
    assert loss(pairs) == pytest.approx(loss(pairs[:3]) + loss(pairs[3:]), abs=1e-4)
    assert abs(loss(pairs) - len(pairs) * 0.693147) > 0.01


def test_the_policy_learns_its_pairs_and_the_reference_stays(made):
    run = stage(made, "dpo")
    dpo.run(run)
    seen = metrics(run)
    assert seen[0]["loss"] == pytest.approx(0.693147, abs=1e-4)
    assert seen[0]["reward_margin"] == pytest.approx(0.0, abs=1e-4)
    assert seen[-1]["reward_margin"] > 0.1
    assert seen[-1]["accuracy"] == 1.0
    assert seen[-1]["loss"] < seen[0]["loss"]
    assert sum(line["pairs"] for line in seen) == SPEC.steps * SPEC.global_batch
    learnt, base = load_language_model(run.outputs / "model"), tiny.language_model()
    pairs = encoded(base)

    def margin(model):
        with torch.no_grad():
            found = dpo.answer_log_probabilities(
                model.model, pairs, padding=base.padding_id, dtype="fp32", device=CPU
            ).view(-1, 2)
        return (found[:, 0] - found[:, 1]).mean().item()

    assert margin(learnt) > margin(base) + 0.1
    assert seen[-1]["reward_margin"] == pytest.approx(SPEC.beta * (margin(learnt) - margin(base)), rel=0.5)


def test_labels_of_the_other_answer_turn_the_policy_round(made):
    path = made / "pairs" / "records.jsonl"
    path.write_text(path.read_text().replace("0.9", "0.1"))
    run = stage(made, "dpo")
    dpo.run(run)
    assert metrics(run)[-1]["reward_margin"] < -0.1
    assert metrics(run)[-1]["accuracy"] == 1.0


def test_ipo_stops_at_its_aim_where_dpo_goes_on(made):
    """Labels of 0.9 and beta 2: 0.8 / 4 = 0.2 nats apart, a reward margin of 0.4; the logistic loss wants 2.2."""
    spec = replace(SPEC, steps=30, beta=2.0)
    margins, first = {}, {}
    for loss in ("dpo", "ipo"):
        run = stage(made, loss, replace(spec, loss=loss))
        dpo.run(run)
        margins[loss] = sum(line["reward_margin"] for line in metrics(run)[-10:]) / 10
        first[loss] = metrics(run)[0]["loss"]
    assert first["ipo"] == pytest.approx(0.25**2, abs=1e-4)
    assert margins["ipo"] == pytest.approx(0.4, abs=0.3)
    assert margins["dpo"] > 1.5


def reference_point(spec=SPEC, factor=0.5):
    """The reference point of a policy that has moved away, and its pairs."""
    policy, reference = tiny.language_model(), tiny.language_model()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(factor)
    setup = SimpleNamespace(
        device=CPU, stage=SimpleNamespace(alive=lambda: None), ranks=SimpleNamespace(sum=lambda values: values)
    )
    pairs = encoded(reference, max_tokens=spec.seq_len)
    return dpo.ReferencePoint(setup, policy.model, reference.model, pairs, spec, reference.padding_id), pairs


@pytest.mark.parametrize(("factor", "is_above"), [(0.5, True), (1.3, False)])
def test_the_reference_point_is_of_the_batch_in_any_division(factor, is_above):
    point, pairs = reference_point(factor=factor)
    rows = list(range(len(pairs)))
    wanted = []
    for row in rows:
        other = next(pairs[after % len(pairs)] for after in range(row + 1, 2 * len(pairs))
                     if pairs[after % len(pairs)].prompt != pairs[row].prompt)  # fmt: skip
        mixed = [replace(other, prompt=pairs[row].prompt)]
        ours, theirs = (
            dpo.answer_log_probabilities(model, mixed, padding=point.padding, dtype="fp32", device=CPU)
            for model in (point.policy, point.reference)
        )
        wanted += (ours - theirs).tolist()
    mean = sum(wanted) / len(wanted)
    assert (mean > 0.01) if is_above else (mean < -0.01)
    for parts in ([rows], [rows[:1], rows[1:]], [[row] for row in rows]):
        point.measure(parts)
        assert point.nats.item() == pytest.approx(max(mean, 0.0), abs=1e-4)
        assert not point.nats.requires_grad
    assert point.policy.training


def test_an_unrelated_answer_fits_into_the_row():
    spec = replace(SPEC, seq_len=24)
    point, pairs = reference_point(spec)
    for row, pair in enumerate(pairs):
        mixed = point.unrelated(row)
        assert len(mixed.prompt) + max(len(mixed.chosen), len(mixed.rejected)) <= spec.seq_len
        assert mixed.prompt
        assert pair.prompt[-len(mixed.prompt) :] == mixed.prompt


def test_kto_of_a_single_prompt_is_refused(made):
    path = made / "pairs" / "records.jsonl"
    rows = [json.loads(line) | {"prompt": "The same?"} for line in path.read_text().splitlines()]
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    with pytest.raises(DataError, match="all pairs have the same one"):
        dpo.run(stage(made, "dpo", replace(SPEC, loss="kto")))


def test_kto_learns_and_tells_its_reference_point(made):
    run = stage(made, "kto", replace(SPEC, loss="kto"))
    dpo.run(run)
    seen = metrics(run)
    assert seen[0]["loss"] == pytest.approx(0.5, abs=1e-4)
    assert seen[0]["reference_point"] == pytest.approx(0.0, abs=1e-4)
    assert seen[-1]["reference_point"] > 0.1
    assert seen[-1]["loss"] < 0.45
    assert seen[-1]["reward_margin"] > 0.1


@pytest.mark.parametrize(("loss", "settings"), [("simpo", {"target_margin": 0.5}), ("orpo", {})])
def test_losses_without_a_reference_read_none(made, monkeypatch, loss, settings):
    monkeypatch.setattr(dpo, "frozen_model", None)
    run = stage(made, loss, replace(SPEC, loss=loss, **settings))
    dpo.run(run)
    seen = metrics(run)
    assert seen[-1]["loss"] < seen[0]["loss"]
    assert seen[-1]["reward_margin"] > seen[0]["reward_margin"]
    assert seen[0]["chosen_reward"] < 0
    # a mean over tokens: near the uniform distribution's, whatever the length of an answer
    uniform = math.log(tiny.language_model().model.config.vocab_size)
    assert seen[0]["chosen_reward"] == pytest.approx(-SPEC.beta * uniform, rel=0.1)


def test_beta_smoothing_and_dropout_reach_the_training(made):
    changed = [SPEC, replace(SPEC, beta=0.1), replace(SPEC, label_smoothing=0.3), replace(SPEC, dropout=0.2)]
    found = set()
    for number, spec in enumerate(changed):
        run = stage(made, f"dpo-{number}", replace(spec, steps=2))
        dpo.run(run)
        found.add(weights(run))
    assert len(found) == len(changed)


@pytest.mark.parametrize(
    ("boundary", "loss"),
    [
        ("step:3:after", "dpo"),
        ("step:3:after", "kto"),
        ("step:3:after", "simpo"),
        pytest.param("step:3:after", "orpo", marks=pytest.mark.thorough),
        pytest.param("checkpoint:4:after", "dpo", marks=pytest.mark.thorough),
        pytest.param("checkpoint:4:after", "kto", marks=pytest.mark.thorough),
    ],
)
def test_a_killed_stage_goes_on_to_the_same_bits(made, boundary, loss):
    spec = replace(SPEC, dropout=0.1, loss=loss)
    undisturbed = stage(made, "undisturbed", spec)
    dpo.run(undisturbed)
    killed = stage(made, "killed", spec)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CHARTER_")}
    done = forks.run(
        [sys.executable, "-c", RUN, str(killed.path)],
        preload=forks.STAGES,
        env=environment | {"CHARTER_KILL": f"dpo:{boundary}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not killed.outputs.exists()
    torch.manual_seed(999)
    dpo.run(StageDir(killed.path))
    assert weights(killed) == weights(undisturbed)
