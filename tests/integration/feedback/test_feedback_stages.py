"""Critique and label stages through a real stage directory, with tiny random models."""

import json
import os
import signal
import sys
from dataclasses import replace

import forks
import pytest

torch = pytest.importorskip("torch")

from charter.artifacts.batch_files import finished_batches
from charter.data.dataset import (
    Prompt,
    Turn,
    read_conversations,
    read_pairs,
    read_prompts,
)
from charter.data.rows import CRITIQUE_FIELDS
from charter.errors import DataError
from charter.feedback import critique, generate, label, local_models
from charter.feedback.inputs import with_unique_ids
from charter.spec.stage import CritiqueStage, GenerateStage, LabelStage

from .conftest import TOPICS, pair_rows, prompt_rows, published

pytestmark = pytest.mark.torch
SAMPLING = {"max_new_tokens": 6, "min_new_tokens": 2, "max_prompt_tokens": 100, "rollout_batch": 4}


def critique_spec(**changes):
    return CritiqueStage(**{"policy": "p", "critic": "c", "prompts": ("d",), "revisions": 2, **SAMPLING, **changes})


def label_spec(**changes):
    return LabelStage(**{"judge": "j", **SAMPLING, **changes})


def run_critique(workshop, name, **changes):
    prompts = workshop.data("prompts", prompt_rows())
    stage = workshop.stage(name, critique_spec(**changes), data={"prompts": prompts}, policy="policy", critic="judge")
    critique.run(stage)
    return stage


def rows_of(stage, file="records.jsonl"):
    return [json.loads(line) for line in (stage.outputs / file).read_text().splitlines()]


def label_stage(workshop, name, rows=None, **changes):
    """Labels of candidates, and of pairs sampled from the policy."""
    data = {"candidates": workshop.data(f"{name}-pairs", pair_rows() if rows is None else rows)}
    data["prompts"] = workshop.data("prompts", prompt_rows())
    spec = label_spec(**{"policy": "p", "prompts": ("d",), "pairs": 6, "candidates": ("c",), **changes})
    return workshop.stage(name, spec, data=data, policy="policy", judge="judge")


def run_label(workshop, name, rows=None, **changes):
    stage = label_stage(workshop, name, rows, **changes)
    label.run(stage)
    return stage


def test_critique_makes_one_record_per_prompt_and_round(workshop):
    stage = run_critique(workshop, "critique")
    records = rows_of(stage)
    ids = {f"p{index}/round-{number}" for index in range(len(TOPICS)) for number in (1, 2)}
    set_aside = rows_of(stage, "set_aside.jsonl") if (stage.outputs / "set_aside.jsonl").exists() else []
    assert {row["id"] for row in records} | {row["id"] for row in set_aside} == ids
    assert len(records) + len(set_aside) == len(ids)
    for row in records:
        assert row["messages"][-1] == {"role": "assistant", "content": row["revision_response"]}
        assert row["messages"][0]["content"] == row["init_prompt"]
        assert row["principle"] in ("kind", "short")
        assert row["critic_prompt"] in ("Is it kind?", "Is it short?")


def test_a_second_run_gives_the_same_bytes_and_another_seed_gives_others(workshop):
    one, same = run_critique(workshop, "one"), run_critique(workshop, "same")
    assert published(one) == published(same)
    data = {"prompts": workshop.root / "prompts.jsonl"}
    other = workshop.stage("other", one.job.spec, data=data, policy="policy", critic="judge")
    object.__setattr__(other.job, "seed", 12)
    critique.run(other)
    assert published(other) != published(one)


def test_round_two_starts_from_the_revision_of_round_one(workshop):
    by_id = {row["id"]: row for row in rows_of(run_critique(workshop, "critique"))}
    rounds = [(f"p{index}/round-1", f"p{index}/round-2") for index in range(len(TOPICS))]
    both = [(by_id[one], by_id[two]) for one, two in rounds if one in by_id and two in by_id]
    assert both
    assert all(second["init_response"] == first["revision_response"] for first, second in both)


def test_critique_records_can_be_read_as_conversations(workshop):
    stage = run_critique(workshop, "critique")
    read = read_conversations(stage.outputs / "records.jsonl")
    assert [item.id for item in read] == [row["id"] for row in rows_of(stage)]


def example_rows(count=4):
    fields = (*CRITIQUE_FIELDS, "revision_response")
    return [{"id": f"e{n}", **{name: f"tea {n}" for name in fields}} for n in range(count)]


def test_worked_critiques_are_shown_and_change_what_is_written(workshop):
    data = {"prompts": workshop.data("prompts", prompt_rows()), "demonstrations": workshop.data("e", example_rows())}
    more = {"few_shot": 1, "demonstrations": "e", "max_prompt_tokens": 200}
    spec = critique_spec(revisions=1, **more)
    shown = workshop.stage("shown", spec, data=data, policy="policy", critic="judge")
    critique.run(shown)
    plain = run_critique(workshop, "plain", revisions=1, max_prompt_tokens=200)
    assert all(len(row["examples"]) == 1 for row in rows_of(shown))
    assert [row["init_response"] for row in rows_of(shown)] == [row["init_response"] for row in rows_of(plain)]
    assert rows_of(shown)[0]["critic_response"] != rows_of(plain)[0]["critic_response"]


def generate_stage(workshop, name, **changes):
    spec = GenerateStage(**{"policy": "p", "prompts": ("d",), **SAMPLING, **changes})
    prompts = workshop.data("prompts", prompt_rows())
    return workshop.stage(name, spec, data={"prompts": prompts}, policy="policy")


def test_answers_can_be_learnt_from_and_repeat_exactly(workshop):
    stage, same = (generate_stage(workshop, name, answers_per_prompt=3) for name in ("one", "same"))
    generate.run(stage)
    generate.run(same)
    assert published(stage) == published(same)
    read = read_conversations(stage.outputs / "records.jsonl")
    aside = rows_of(stage, "set_aside.jsonl") if (stage.outputs / "set_aside.jsonl").exists() else []
    assert len(read) + len(aside) == 30
    at_once = (
        SAMPLING["rollout_batch"] // 3
    )  # prompts of a batch, so that no more than rollout_batch are sampled together
    assert finished_batches(stage.path) == -(-10 // at_once)
    assert len({row["messages"][-1]["content"] for row in rows_of(stage)}) > 10


def test_new_prompts_can_be_read_as_prompts_and_what_was_cut_off_is_set_aside(workshop, monkeypatch):
    real = local_models.sample_texts

    def sometimes_ended(model, asks):
        """So small a model hardly ever ends by itself."""
        return [replace(text, is_finished=ask.seed % 4 == 0) for ask, text in zip(asks, real(model, asks), strict=True)]

    monkeypatch.setattr(local_models, "sample_texts", sometimes_ended)
    more = {"makes": "prompts", "num_prompts": 9, "few_shot": 2, "max_prompt_tokens": 200}
    stage = generate_stage(workshop, "new", **more)
    generate.run(stage)
    read = read_prompts(stage.outputs / "records.jsonl")
    summary = json.loads((stage.outputs / "summary.json").read_text())
    assert 0 < summary["set_aside/cut off"] < 9
    assert len(read) == 9 - summary["set_aside/cut off"]
    assert {row["reason"] for row in rows_of(stage, "set_aside.jsonl")} == {"cut off"}


def test_num_prompts_takes_the_first_of_the_file_and_a_shortage_is_said(workshop, capsys):
    stage = run_critique(workshop, "few", num_prompts=3, revisions=1)
    assert {row["id"].split("/")[0] for row in rows_of(stage)} <= {"p0", "p1", "p2"}
    assert "asked for" not in capsys.readouterr().out
    stage = run_critique(workshop, "many", num_prompts=11, revisions=1)
    assert json.loads((stage.outputs / "summary.json").read_text())["prompts"] == 10
    assert "11 prompts were asked for, 10 are there" in capsys.readouterr().out


def test_an_empty_revision_is_set_aside_and_counted(workshop, monkeypatch):
    real = local_models.sample_texts

    def sometimes_empty(model, asks):
        found = real(model, asks)
        revising = asks[0].turns[-1].content.startswith("Make it")
        return [
            replace(text, text="") if revising and "tea" in ask.turns[0].content else text
            for ask, text in zip(asks, found, strict=True)
        ]

    monkeypatch.setattr(local_models, "sample_texts", sometimes_empty)
    stage = run_critique(workshop, "critique")
    dropped = rows_of(stage, "set_aside.jsonl")
    assert {"p9/round-1", "p9/round-2"} <= {row["id"] for row in dropped}
    assert all(row["reason"] == "empty revision" for row in dropped)
    summary = json.loads((stage.outputs / "summary.json").read_text())
    assert summary["empty_revisions"] == len(dropped)
    assert summary["records"] + summary["set_aside"] == 20


def test_a_context_too_small_is_refused_before_anything_is_sampled(workshop):
    with pytest.raises(DataError, match="takes 256 tokens; max_prompt_tokens 252 \\+ max_new_tokens 6 = 258"):
        run_critique(workshop, "critique", max_prompt_tokens=252)


def test_labels_are_soft_and_name_the_likelier_answer(workshop):
    stage = run_label(workshop, "label")
    rows = rows_of(stage)
    assert len(read_pairs(stage.outputs / "records.jsonl")) == len(rows)
    assert {row["source"] for row in rows} == {"candidate", "policy"}
    for row in rows:
        odds = row["both_orders"]["log_odds_chosen"]
        expected = sum(1 / (1 + 2.718281828459045**-value) for value in odds) / 2
        assert row["chosen_probability"] == pytest.approx(expected, abs=1e-9)
        assert 0.5 <= row["chosen_probability"] < 1
        assert row["both_orders"]["agree"] == (len({value > 0 for value in odds}) == 1)
        assert row["judge"] == "of-judge"


def test_the_human_label_does_not_leak(workshop):
    """Chosen and rejected of the source change places: every byte of the labels stays."""
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in pair_rows()]
    only = {"policy": None, "prompts": (), "pairs": 0}
    one, other = run_label(workshop, "one", **only), run_label(workshop, "other", swapped, **only)
    assert published(one) == published(other)
    humans = {row["id"]: row["chosen"] for row in pair_rows()}
    agree = [row["chosen"] == humans[row["id"]] for row in rows_of(one)]
    assert 0 < sum(agree) < len(agree), "the judge agrees always or never, so this test shows nothing"


def test_a_source_probability_does_not_leak_either(workshop):
    only = {"policy": None, "prompts": (), "pairs": 0}
    soft = [{**row, "chosen_probability": 0.6} for row in pair_rows()]
    assert published(run_label(workshop, "hard", **only)) == published(run_label(workshop, "soft", soft, **only))


def test_identical_and_empty_answers_are_set_aside_and_counted(workshop, monkeypatch):
    real_pairs = read_pairs(workshop.data("pairs", pair_rows()))
    same = type(real_pairs[0])("same", real_pairs[0].prompt, "It is.", "It is.")
    empty = type(real_pairs[0])("empty", real_pairs[0].prompt, "It is.", " ")
    real_pairs = (same, empty, *real_pairs)
    monkeypatch.setattr(label, "role_pairs", lambda job, role: real_pairs)
    stage = run_label(workshop, "label", policy=None, prompts=(), pairs=0)
    dropped = {row["id"]: row["reason"] for row in rows_of(stage, "set_aside.jsonl")}
    assert dropped == {"same": "identical answers", "empty": "empty answer"}
    summary = json.loads((stage.outputs / "summary.json").read_text())
    assert (summary["identical_answers"], summary["empty_answers"], summary["records"]) == (1, 1, 10)


def test_sampled_pairs_that_are_alike_are_drawn_again(workshop, monkeypatch):
    calls = []
    real = local_models.sample_texts

    def alike_at_first(model, asks):
        calls.append(len(asks))
        found = real(model, asks)
        return [replace(text, text="the same") for text in found] if len(calls) <= 2 else found

    monkeypatch.setattr(local_models, "sample_texts", alike_at_first)
    stage = run_label(workshop, "label", pairs=4, candidates=())
    rows = rows_of(stage)
    assert len(calls) >= 3
    assert all(row["chosen"] != row["rejected"] for row in rows)
    assert any("the same" in (row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows)


def test_rows_that_share_an_id_get_draws_of_their_own():
    prompts = [Prompt("a", (Turn("user", text),)) for text in ("x", "y", "z")]
    assert [row.id for row in with_unique_ids(prompts)] == ["a", "a#2", "a#3"]


def test_nothing_to_label_and_temperature_0_are_refused(workshop):
    with pytest.raises(DataError, match="nothing to label"):
        label.run(workshop.stage("none", label_spec(), judge="judge"))
    with pytest.raises(DataError, match="temperature 0"):
        run_label(workshop, "cold", temperature=0.0)


@pytest.mark.parametrize("format", ["multiple_choice", "yes_no"])
def test_the_summary_states_position_effects_where_the_question_has_positions(workshop, format):
    stage = run_label(workshop, f"label-{format}", format=format)
    rows = rows_of(stage)
    summary = json.loads((stage.outputs / "summary.json").read_text())
    if format == "yes_no":
        assert not {"position_bias", "orders_agree"} & set(summary)
        return
    first_wins = 0
    for row in rows:
        sign = 1 if row["both_orders"]["chosen_shown_first"] else -1
        straight, swapped = (sign * value for value in row["both_orders"]["log_odds_chosen"])
        first_wins += (straight > 0) + (swapped < 0)
    assert summary["position_bias"] == pytest.approx(first_wins / (2 * len(rows)) - 0.5)
    assert summary["orders_agree"] == pytest.approx(sum(row["both_orders"]["agree"] for row in rows) / len(rows))


def test_a_constitution_is_needed(workshop):
    stage = label_stage(workshop, "label")
    object.__setattr__(stage.job, "constitution", None)
    with pytest.raises(DataError, match="needs a constitution"):
        label.run(stage)


def start(stage, module, **environment):
    """Run a stage as a process of its own."""
    return forks.run(
        [sys.executable, "-m", module, "--stage-dir", str(stage.path)],
        preload=forks.STAGES,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["outputs:3:after"])
def test_sigkill_at_a_boundary_changes_no_byte_of_the_critiques(workshop, kill):
    undisturbed = run_critique(workshop, "undisturbed", revisions=1)
    data = {"prompts": workshop.root / "prompts.jsonl"}
    killed = workshop.stage("killed", critique_spec(revisions=1), data=data, policy="policy", critic="judge")
    assert start(killed, "charter.feedback.critique", CHARTER_KILL=f"critique:{kill}").returncode == -signal.SIGKILL
    assert not killed.is_done
    assert start(killed, "charter.feedback.critique").returncode == 0
    assert published(killed) == published(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["checkpoint:2:before"])
def test_sigkill_at_a_boundary_changes_no_byte_of_the_labels(workshop, kill):
    undisturbed = run_label(workshop, "undisturbed")
    killed = label_stage(workshop, "killed")
    assert start(killed, "charter.feedback.label", CHARTER_KILL=f"label:{kill}").returncode == -signal.SIGKILL
    assert start(killed, "charter.feedback.label").returncode == 0
    assert published(killed) == published(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["checkpoint:2:before"])
def test_sigkill_at_a_boundary_changes_no_byte_of_what_is_generated(workshop, kill):
    undisturbed, killed = (generate_stage(workshop, name, answers_per_prompt=2) for name in ("undisturbed", "killed"))
    generate.run(undisturbed)
    assert start(killed, "charter.feedback.generate", CHARTER_KILL=f"generate:{kill}").returncode == -signal.SIGKILL
    assert not killed.is_done
    assert start(killed, "charter.feedback.generate").returncode == 0
    assert published(killed) == published(undisturbed)


def test_the_draws_of_a_pair_hang_on_its_id_alone(workshop):
    """Labels of a subset are the labels of the whole, whatever else is labelled."""
    only = {"policy": None, "prompts": (), "pairs": 0}
    whole = {row["id"]: row for row in rows_of(run_label(workshop, "whole", **only))}
    few = rows_of(run_label(workshop, "few", pair_rows()[4:8], **only))
    assert all(row["principle"] == whole[row["id"]]["principle"] for row in few)
    assert all(shown_first(row) == shown_first(whole[row["id"]]) for row in few)


def shown_first(row):
    return row["chosen" if row["both_orders"]["chosen_shown_first"] else "rejected"][0]["content"]
