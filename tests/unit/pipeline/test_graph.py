from dataclasses import replace

import pytest

from charter.run.graph import AdoptedRecord, build_pipeline, job_of
from charter.spec.architecture import Architecture
from charter.spec.project import Budget, DataSpec, ModelSpec, Project, Resources, Storage, TokenizerSpec
from charter.spec.stage import EvalStage, LabelStage, PreferenceModelStage, PretrainStage, SftStage

ARCHITECTURE = Architecture(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, vocab_size=300)
PRINCIPLES = "principles:\n- {id: kind, critique: a, revision: b, compare: c}\n"


@pytest.fixture
def project(tmp_path):
    for name in ("chat", "pairs", "corpus"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    (tmp_path / "constitution.yaml").write_text(f"schema: charter.constitution/v1\nname: n\nversion: '1'\n{PRINCIPLES}")
    return Project(
        name="p",
        models={"base": ModelSpec(architecture=ARCHITECTURE, tokenizer=TokenizerSpec(train_on=("corpus",)))},
        data={name: DataSpec(path=f"{name}.jsonl") for name in ("chat", "pairs", "corpus")},
        constitution="constitution.yaml",
        pipeline={
            "pre": PretrainStage(init="base", data=("corpus",), steps=4),
            "sft": SftStage(init="pre", data=("chat",), steps=4),
            "label": LabelStage(judge="sft", candidates=("pairs",)),
            "pm": PreferenceModelStage(init="pre", data=("label",), steps=4),
            "eval": EvalStage(policy="sft", suites=("perplexity",)),
        },
        seed=3,
    )


def fingerprints(project, root):
    return {name: stage.fingerprint for name, stage in build_pipeline(project, root).stages.items()}


def changed(project, root, other):
    before, after = fingerprints(project, root), fingerprints(other, root)
    return {name for name in after if before.get(name) != after[name]}


def with_stage(project, name, **values):
    return replace(project, pipeline={**project.pipeline, name: replace(project.pipeline[name], **values)})


def test_execution_values_change_no_fingerprint(project, tmp_path):
    other = replace(
        project,
        name="another name",
        resources=Resources(price=9.0, use_spot=True, max_parallel_stages=2),
        budget=Budget(limit=1.0),
        storage=Storage(keep_last=9),
        deadline=60.0,
    )
    assert changed(project, tmp_path, other) == set()


@pytest.mark.parametrize(
    ("stage", "values", "expected"),
    [
        ("pre", {"learning_rate": 1e-3}, {"pre", "sft", "label", "pm", "eval"}),
        ("sft", {"learning_rate": 1e-3}, {"sft", "label", "pm", "eval"}),
        ("label", {"both_orders": False}, {"label", "pm"}),
        ("eval", {"num_prompts": 4}, {"eval"}),
    ],
)
def test_a_change_reaches_the_stage_and_its_dependents_only(project, tmp_path, stage, values, expected):
    assert changed(project, tmp_path, with_stage(project, stage, **values)) == expected


def test_the_seed_reaches_every_stage(project, tmp_path):
    assert changed(project, tmp_path, replace(project, seed=4)) == set(project.pipeline)


def test_the_constitution_reaches_the_stages_that_read_it(project, tmp_path):
    before = fingerprints(project, tmp_path)
    path = tmp_path / "constitution.yaml"
    path.write_text("# a comment\n" + path.read_text())
    assert fingerprints(project, tmp_path) == before
    path.write_text(path.read_text().replace("critique: a", "critique: other"))
    after = fingerprints(project, tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"label", "pm"}


def test_a_tokenizers_data_is_part_of_the_model(project, tmp_path):
    before = fingerprints(project, tmp_path)
    stage = build_pipeline(project, tmp_path).stages["pre"]
    assert [item.name for item in stage.inputs["tokenizer"]] == ["corpus"]
    (tmp_path / "corpus.jsonl").write_text('{"text": "other"}\n')
    assert fingerprints(project, tmp_path)["pre"] != before["pre"]


def test_where_data_lies_and_what_the_planner_assumes_of_it_do_not_count(project, tmp_path):
    (tmp_path / "moved.jsonl").write_bytes((tmp_path / "chat.jsonl").read_bytes())
    moved = DataSpec(path="moved.jsonl", rows=10, mean_tokens=3.0)
    assert changed(project, tmp_path, replace(project, data={**project.data, "chat": moved})) == set()
    part = DataSpec(path="chat.jsonl", part="1/2")
    assert changed(project, tmp_path, replace(project, data={**project.data, "chat": part})) >= {"sft"}


def test_all_missing_files_are_collected_and_nothing_is_raised(project, tmp_path):
    for name in ("chat", "pairs"):
        (tmp_path / f"{name}.jsonl").unlink()
    pipeline = build_pipeline(project, tmp_path)
    assert sorted(pipeline.inputs.problems) == ["chat", "pairs"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "no directory"),
        ((), "has no config.json"),
        (("config.json",), "has no *.safetensors"),
        (("config.json", "model.safetensors"), None),
    ],
)
def test_a_model_path_must_hold_a_model(project, tmp_path, files, message):
    if files is not None:
        (tmp_path / "hf").mkdir()
        for name in files:
            (tmp_path / "hf" / name).write_text("{}")
    other = replace(project, models={"base": ModelSpec(model="hf")})
    pipeline = build_pipeline(other, tmp_path)
    found = [problem.message for problem in pipeline.inputs.problems_of(["base"])]
    assert [message in text for text in found] == ([] if message is None else [True])


def test_a_stages_job_holds_absolute_paths_and_its_identity(project, tmp_path):
    pipeline = build_pipeline(project, tmp_path)
    job = job_of(pipeline.stages["label"], project, {"threads": 1})
    assert job.only("judge").path == str(pipeline.stages["sft"].directory / "outputs")
    assert job.only("candidates").path == str(tmp_path / "pairs.jsonl")
    assert job.constitution == str(tmp_path / "constitution.yaml")
    assert job.identity["kind"] == "label"


def test_a_kept_record_stands_in_for_what_hangs_on_it(project, tmp_path):
    stage = build_pipeline(project, tmp_path).stages["pre"]
    kept = replace(stage, kept=AdoptedRecord(fingerprint="e" * 64, why="accepted"))
    assert (kept.fingerprint, kept.asked_fingerprint) == ("e" * 64, stage.asked_fingerprint)
