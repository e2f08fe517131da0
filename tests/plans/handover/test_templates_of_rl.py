"""The RL stages of the templates, handed to every engine that trains them: accepted, or refused with the reason."""

from dataclasses import replace

import pytest

from charter.engines import render
from charter.errors import SpecError
from charter.plan.project_plan import plan_project
from charter.plan.what_if import with_other_engines
from charter.report.handover import export_handover, with_engine
from charter.report.handover import exported as handed_over
from charter.report.handover_pages import handover_of
from charter.spec.load import load_project
from charter.spec.stage_base import StageResources
from charter.templates.shipped import find_template, write_template

ENGINES = ("trl", "verl", "openrlhf", "nemo_rl", "prime_rl", "skyrl")
ACCEPTED = None
JUDGE = {
    "rewards": "beside the engine, and an export has none",
    "on_overoptimisation": "compares the rewards with the gold",
}
OTHER_PACE = {
    "minibatch": "must be rollout_batch",
    "scale_advantages": "divides by no deviation",
    "asynchrony": "always draws ahead",
}
TABLE = {
    ("rlvr-tiny", "trl"): ACCEPTED,
    ("rlvr-tiny", "verl"): {"resources": "needs accelerators", "dtype": "fp32"},
    ("rlvr-tiny", "openrlhf"): {"dtype": "bf16 or fp16", "min_new_tokens": "fixed to 1"},
    ("rlvr-tiny", "nemo_rl"): {"resources": "needs accelerators"},
    ("rlvr-tiny", "prime_rl"): {**OTHER_PACE, "resources": "needs accelerators", "dtype": "bfloat16"},
    ("rlvr-tiny", "skyrl"): {"resources": "needs accelerators", "dtype": "bfloat16", "min_new_tokens": "fixed to 1"},
    **{("grpo-7b", engine): ACCEPTED for engine in ("trl", "verl", "nemo_rl")},
    **{("grpo-7b", engine): {"min_new_tokens": "fixed to 1"} for engine in ("openrlhf", "skyrl")},
    ("grpo-7b", "prime_rl"): {**OTHER_PACE, "resources": "on accelerators of its own"},
    **{("constitution-rl-8b", engine): JUDGE for engine in ENGINES},
    ("tools-tiny", "trl"): {"environment": "no tools and no environment"},
    ("tools-tiny", "verl"): {"environment": "classes of its own"},
    ("tools-tiny", "openrlhf"): {"environment": "tokenise what a tool says apart"},
    ("tools-tiny", "nemo_rl"): {"environment": "whose replies it tokenises"},
    ("tools-tiny", "prime_rl"): {"environment": "harness of verifiers"},
    ("tools-tiny", "skyrl"): {"environment": "tokenised by the chat template"},
}
ON_GPUS = {
    "infra: local": "accelerators: H100:8",
    "cpus: 1  ": "# ",
    "dtype: fp32": "dtype: bf16",
    "precision: fp32": "precision: bf16",
}
ONE_TOKEN = {"    samples_per_prompt: 8": "    min_new_tokens: 1\n    samples_per_prompt: 8"}
BESIDE_A_GENERATOR = {
    **ON_GPUS,
    "minibatch: 128": "minibatch: 256",
    "    samples_per_prompt: 8": "    asynchrony: in_flight\n    max_age: 2\n    scale_advantages: none\n"
    "    samples_per_prompt: 8",
}
CHANGED = [
    ("rlvr-tiny", BESIDE_A_GENERATOR, "prime_rl"),
    *(("rlvr-tiny", {**ON_GPUS, **ONE_TOKEN}, engine) for engine in ("openrlhf", "skyrl")),
    ("rlvr-tiny", {}, "trl"),
    *(("grpo-7b", ONE_TOKEN, engine) for engine in ("openrlhf", "skyrl")),
]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A template's project and its plan, made once: what an engine cannot express does not depend on its layout."""
    projects = {}

    def of(template):
        if template not in projects:
            root = tmp_path_factory.mktemp(template)
            write_template(find_template(template), root, force=True)
            project = load_project(root)
            projects[template] = project, root, plan_project(project, root)
        return projects[template]

    return of


def exported(tmp_path, template, engine, changes):
    write_template(find_template(template), tmp_path, force=True)
    file = tmp_path / "charter.yaml"
    text = file.read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)
    return export_handover(load_project(tmp_path), tmp_path, "rl", engine)


@pytest.mark.parametrize(("template", "engine"), TABLE, ids=["-".join(pair) for pair in TABLE])
def test_template_is_accepted_or_refused_with_reasons(planned, template, engine):
    wanted = TABLE[template, engine]
    project, root, plan = planned(template)
    changed = with_engine(project, "rl", engine)
    if wanted is ACCEPTED:
        assert "rewards.py" in handed_over(changed, plan, root, "rl", rows={}).files
        return
    with pytest.raises(SpecError) as refusal:
        handed_over(changed, plan, root, "rl", rows={})
    messages = {problem.path.removeprefix("pipeline.rl."): problem.message for problem in refusal.value.problems}
    assert set(messages) == set(wanted)
    assert all(words in messages[name] for name, words in wanted.items()), messages
    assert "Reward(" not in str(refusal.value)
    assert "Environment(" not in str(refusal.value)


@pytest.mark.parametrize(("template", "changes", "engine"), CHANGED, ids=[f"{a}-{b}" for a, _, b in CHANGED])
def test_template_without_what_was_refused_is_accepted(tmp_path, template, changes, engine):
    made = exported(tmp_path, template, engine, changes)
    assert "rewards.py" in made.files
    assert "right (function charter:" in made.files["mapping.md"]


def test_own_function_travels_with_the_export(planned, tmp_path):
    (tmp_path / "mine.py").write_text("def half(answer, truth):\n    return 0.5\n")
    project, _, plan = planned("rlvr-tiny")
    stage = project.pipeline["rl"]
    mine = replace(stage, engine="trl", rewards=(replace(stage.rewards[0], call="mine.py:half"),))
    changed = replace(project, pipeline={**project.pipeline, "rl": mine})
    made = handed_over(changed, plan, tmp_path, "rl", rows={})
    assert made.files["reward_sources/0_mine.py"] == (tmp_path / "mine.py").read_text()
    assert "'0_mine.py:half'" in made.files["rewards.py"]


def test_function_by_lot_asks_for_what_no_engine_tells(planned):
    project, root, plan = planned("tools-tiny")
    for engine in ENGINES:
        with pytest.raises(SpecError, match="lot: it asks for seed"):
            handed_over(with_engine(project, "rl_control", engine), plan, root, "rl_control", rows={})


@pytest.mark.parametrize("engine", ["verl", "nemo_rl"])
def test_judges_cost_in_another_engine_what_they_cost_here(planned, engine):
    """The same questions at the same prices; the engine is planned on one node, where it can ask them."""
    project, root, plan = planned("constitution-rl-8b")
    stage = replace(project.pipeline["rl"], engine=engine)
    other = plan_project(replace(project, pipeline={**project.pipeline, "rl": stage}), root)
    here, there = plan.stage("rl"), other.stage("rl")
    assert there.endpoint_usd == here.endpoint_usd
    assert there.endpoint_usd.p50 > 0
    assert {option.num_nodes for option in there.options} > {1}


def test_engines_on_several_nodes_ask_judges_too(planned):
    project, root, _ = planned("constitution-rl-8b")
    stage = replace(project.pipeline["rl"], resources=StageResources(num_nodes=2))
    wide = plan_project(replace(project, pipeline={**project.pipeline, "rl": stage}), root)
    engines = with_other_engines(wide).stage("rl").other_engines
    assert {item.engine for item in engines if not item.refused} >= {"nemo_rl"}, engines


RUN = {
    "trl": set(),
    "verl": set(),
    "nemo_rl": set(),
    "openrlhf": {"min_new_tokens"},
    "skyrl": {"min_new_tokens", "kl_coefficient"},
    "prime_rl": {*OTHER_PACE, "resources", "kl_coefficient"},
}


@pytest.mark.parametrize("engine", RUN)
def test_a_run_of_judges_and_a_watch_is_rendered(planned, engine):
    """What an export has nobody for, `charter run` does: it asks the judges and stops at the alarm."""
    project, _, plan = planned("constitution-rl-8b")
    changed, refused = with_engine(project, "rl", engine), set()
    try:
        render(replace(handover_of(changed, plan, "rl"), is_run=True))
    except SpecError as error:
        refused = {problem.path.rpartition(".")[2] for problem in error.problems}
    assert refused == RUN[engine]
