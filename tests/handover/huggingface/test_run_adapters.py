"""TRL's SFT and reward model with an adapter under Charter: killed once each, merged, the same hashes at the end."""

import hosted_case as case
import pytest
from engine_case import engine_python
from reward_scores import scores_of

EVERY, STEPS = 4, 16
KILLS = {"sft": "everything", "pm": "engine"}


def project(root):
    case.write_project(
        root,
        python=engine_python("huggingface"),
        steps=STEPS,
        every=EVERY,
        more=", adapter: {rank: 4, alpha: 8}",
    )
    return root


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = project(tmp_path_factory.mktemp("undisturbed") / "project")
    ended = case.charter(root, "run", "--yes", "--only", "pm")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return root


@pytest.mark.slow
def test_two_kills_leave_the_hashes_of_an_undisturbed_run(undisturbed, tmp_path):
    root = project(tmp_path / "project")
    kills = case.kill_each(root, KILLS, every=EVERY, steps=STEPS, seed=7)
    assert [kill["killed"] for kill in kills] == ["everything", "engine"]
    assert case.engine_processes(root) == {}
    found, wanted = case.outputs_of(root), case.outputs_of(undisturbed)
    assert {stage: found[stage] for stage in KILLS} == {stage: wanted[stage] for stage in KILLS}
    assert all(wanted[stage] for stage in KILLS)
    attempts = case.answered(root, "cost", "report")["attempts"]
    assert [(item["stage"], item["outcome"]) for item in attempts] == [
        ("sft", "killed"),
        ("sft", "done"),
        ("pm", "killed"),
        ("pm", "done"),
    ]


def test_the_model_and_the_adapter_are_where_the_native_engine_puts_them(undisturbed):
    files = {stage: set(case.outputs_of(undisturbed)[stage]) for stage in KILLS}
    assert {"adapter/adapter_config.json", "adapter/adapter_model.safetensors"} <= files["sft"]
    assert not [name for name in files["pm"] if "adapter" in name]
    for stage in KILLS:
        assert {"model/model.safetensors", "model/config.json", "model/tokenizer.json"} <= files[stage]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_published_model_says_what_the_base_with_the_engines_adapter_says(undisturbed):
    """The last checkpoint is the engine's own, read by peft."""
    import torch
    from peft import PeftModel

    from charter.artifacts.stage_dir import StageDir
    from charter.models.language_model import load_language_model
    from charter.train.models import starting_model

    directory = case.stage_dir(undisturbed, "sft")
    published = load_language_model(directory / "outputs" / "model").model.eval()
    base = starting_model(StageDir(directory).job).model.eval()
    ids = torch.arange(5, 85)[None]
    with torch.no_grad():
        found, before = published(ids).logits, base(ids).logits
        wanted = PeftModel.from_pretrained(base, str(directory / "state" / f"step-{STEPS:08}")).eval()(ids).logits
    assert (found - before).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_published_reward_model_scores_as_the_base_with_the_engines_adapter(undisturbed):
    """Its head is among what peft has saved."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    from charter.models.preference import load_preference_model

    directory = case.stage_dir(undisturbed, "pm")
    ours = load_preference_model(directory / "outputs" / "model")
    base = AutoModelForSequenceClassification.from_pretrained(
        case.stage_dir(undisturbed, "sft") / "outputs" / "model", num_labels=1
    )
    theirs = PeftModel.from_pretrained(base, str(directory / "state" / f"step-{STEPS:08}")).eval()
    found, wanted = scores_of(ours, theirs)
    assert found.std() > 0
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_its_stages_say_what_their_resume_is_worth(undisturbed):
    stages = {stage["name"]: stage for stage in case.answered(undisturbed, "status")["stages"]}
    assert {stages[name]["resume_guarantee"] for name in KILLS} == {"bit_exact"}
    assert stages["dpo"]["state"] != "done"
