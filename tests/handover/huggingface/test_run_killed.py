"""TRL's SFT, reward model, DPO and KTO under Charter: killed once each, and the hashes of undisturbed runs after."""

import json

import hosted_case as case
import pytest
from engine_case import engine_python
from reward_scores import scores_of

EVERY, STEPS = 4, 20


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed") / "project"
    case.write_project(root, python=engine_python("huggingface"), steps=STEPS, every=EVERY)
    ended = case.charter(root, "run", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return root


@pytest.mark.slow
def test_three_kills_leave_the_hashes_of_an_undisturbed_run(undisturbed, tmp_path):
    root = tmp_path / "project"
    case.write_project(root, python=engine_python("huggingface"), steps=STEPS, every=EVERY)
    kills = case.kill_each(root, every=EVERY, steps=STEPS, seed=7)
    assert [kill["killed"] for kill in kills] == ["supervisor", "everything", "engine"]
    assert case.engine_processes(root) == {}
    assert case.outputs_of(root) == case.outputs_of(undisturbed)
    attempts = case.answered(root, "cost", "report")["attempts"]
    assert [(item["stage"], item["outcome"]) for item in attempts] == [
        ("sft", "killed"),
        ("sft", "done"),
        ("pm", "killed"),
        ("pm", "done"),
        ("dpo", "killed"),
        ("dpo", "done"),
    ]


def of_kto(root):
    """The project with two stages: SFT, and KTO from it."""
    case.write_project(root, python=engine_python("huggingface"), steps=STEPS, every=EVERY)
    path = root / "charter.yaml"
    path.write_text(path.read_text().replace("kind: dpo,", "kind: dpo, loss: kto,"))
    return root


@pytest.mark.slow
def test_a_killed_kto_leaves_the_hashes_of_an_undisturbed_one(tmp_path):
    calm, root = of_kto(tmp_path / "calm"), of_kto(tmp_path / "project")
    for path, words in ((calm, ("--only", "dpo")), (root, ("--only", "sft"))):
        ended = case.charter(path, "run", "--yes", *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    case.kill_each(root, {"dpo": "engine"}, every=EVERY, steps=STEPS, seed=7)
    assert case.outputs_of(root)["dpo"] == case.outputs_of(calm)["dpo"]
    stages = {stage["name"]: stage for stage in case.answered(root, "status")["stages"]}
    assert (stages["dpo"]["attempts"], stages["dpo"]["resume_guarantee"]) == (2, "bit_exact")
    log = (case.stage_dir(root, "dpo") / "metrics.jsonl").read_text().splitlines()
    first = json.loads(log[0])
    assert first["loss"] == pytest.approx(0.5), "where policy and reference are one, 1 - s(0) of every answer"
    assert {"kl", "chosen_reward", "rejected_reward", "reward_margin"} <= set(first)


def test_the_published_reward_model_scores_as_the_engines_own(undisturbed):
    """TRL's is a sequence classifier; its last checkpoint holds the final weights."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from charter.models.preference import load_preference_model

    directory = case.stage_dir(undisturbed, "pm")
    ours = load_preference_model(directory / "outputs" / "model")
    theirs = AutoModelForSequenceClassification.from_pretrained(directory / "state" / f"step-{STEPS:08}").eval()
    found, wanted = scores_of(ours, theirs)
    assert found.std() > 0
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_every_stage_says_what_its_resume_is_worth(undisturbed):
    for stage in case.answered(undisturbed, "status")["stages"]:
        assert (stage["state"], stage["attempts"]) == ("done", 1)
        assert stage["engine"] == "trl"
        assert stage["resume_guarantee"] == "bit_exact"
