"""The real lm-evaluation-harness on our adapter: the five kinds of task, and its own Hugging Face model beside ours.

The tasks are a few items each, in our own words, written by the test: nothing is downloaded.
"""

import json
import math

import pytest

torch = pytest.importorskip("torch")
lm_eval = pytest.importorskip("lm_eval", reason="pip install lm-eval")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.evaluate import run
from charter.evaluate.questions import charter_lm
from charter.models.chat import train_tokenizer
from charter.models.language_model import (
    load_language_model,
    new_language_model,
)
from charter.spec.architecture import Architecture
from charter.spec.stage import EvalStage

# The harness and what it is built on warn of their own affairs.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TOLERANCE_NATS = 1e-4
"""Of fp32 log-probabilities over batches padded otherwise: sums in another order."""
ARCHITECTURE = Architecture(
    hidden_size=64, num_layers=2, num_heads=4, intermediate_size=128, vocab_size=400, max_position_embeddings=128
)
CHOICE = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {name}.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
GENERATED = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {name}.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
ITEMS = {
    "knowledge": [("Water is made of hydrogen and", [" oxygen", " gold"], 0), ("The sun is a", [" lake", " star"], 1)],
    "reasoning": [("All cats are animals. Tom is a cat, so Tom is", [" an animal", " a stone"], 0)] * 2,
    "maths": [("2 + 3 =", "5"), ("4 + 4 =", "8")],
    "reading": [("Ann gave Ben a pear. Who has the pear?", [" Ann", " Ben"], 1)] * 3,
    "code": [("def double(x):\n    return", " 2 * x"), ("def name():\n    return", ' "name"')],
}


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    texts = [item[0] for items in ITEMS.values() for item in items]
    model = new_language_model(ARCHITECTURE, train_tokenizer(texts * 3, vocab_size=400), seed=3)
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    path = tmp_path_factory.mktemp("model")
    model.save(path)
    return path


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Tasks of all five kinds as a user would write them: a YAML file and its items beside it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    directory = tmp_path / "tasks"
    directory.mkdir()
    for name, items in ITEMS.items():
        chosen = isinstance(items[0][1], list)
        (directory / f"{name}.yaml").write_text((CHOICE if chosen else GENERATED).format(name=f"our_{name}"))
        rows = [
            {"question": item[0], "choices": item[1], "answer": item[2]}
            if chosen
            else {"question": item[0], "answer": item[1]}
            for item in items
        ]
        (directory / f"our_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def eval_stage(path, model_directory, tasks, **changes):
    spec = EvalStage(policy="p", suites=("lm_eval",), lm_eval_tasks=("tasks",), rollout_batch=4, **changes)
    job = Job(
        run="run", stage="eval", kind="eval", fingerprint="f" * 64, seed=11, spec=spec, constitution=None,
        inputs={
            "policy": (JobInput(name="p", role="policy", source="model", path=str(model_directory), fingerprint="m"),),
            "lm_eval_tasks": (
                JobInput(name="tasks", role="lm_eval_tasks", source="data", path=str(tasks), fingerprint="t"),
            ),
        },
        frozen={"threads": 1, "device": "cpu"}, keep_last=2,
    )  # fmt: skip
    path.mkdir()
    write_job(path, job)
    return StageDir(path)


def results(stage):
    run.run(stage)
    return {item["key"]: item for item in json.loads((stage.outputs / "results.json").read_text())["figures"]}


def test_tasks_of_all_five_kinds_run_and_have_intervals(tmp_path, model_directory, tasks):
    figures = results(eval_stage(tmp_path / "stage", model_directory, tasks))
    for name in ("knowledge", "reasoning", "reading"):
        assert f"lm_eval.policy.our_{name}.acc" in figures
        assert f"lm_eval.policy.our_{name}.acc_norm" in figures
    for name in ("maths", "code"):
        assert f"lm_eval.policy.our_{name}.exact_match" in figures
    for figure in figures.values():
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert figure["headline"]
    assert figures["lm_eval.policy.our_reading.acc"]["n"] == 3


def test_a_second_run_gives_the_same_bytes_and_no_text_of_a_task(tmp_path, model_directory, tasks):
    stages = [eval_stage(tmp_path / name, model_directory, tasks) for name in ("one", "two")]
    for stage in stages:
        run.run(stage)
    one, two = ((stage.outputs / "results.json").read_bytes() for stage in stages)
    assert one == two
    assert b"Tom is a cat" not in one


def test_a_single_file_names_its_task_alone(tmp_path, model_directory, tasks):
    figures = results(eval_stage(tmp_path / "stage", model_directory, tasks / "maths.yaml"))
    assert {key.split(".")[2] for key in figures} == {"our_maths"}


def test_a_task_that_is_not_local_is_refused_and_not_downloaded(tmp_path, model_directory, tasks):
    (tasks / "far.yaml").write_text(CHOICE.format(name="far").replace("dataset_path: json", "dataset_path: some/set"))
    with pytest.raises(DataError, match="tasks must be local"):
        run.run(eval_stage(tmp_path / "stage", model_directory, tasks / "far.yaml"))


def test_log_likelihoods_are_those_of_the_harness_own_model(model_directory):
    ours = charter_lm(load_language_model(model_directory), batch=3, seed=1)
    theirs = HFLM(pretrained=str(model_directory), device="cpu", dtype="float32", batch_size=2)
    pairs = [(item[0], choice) for items in ITEMS.values() for item in items for choice in item[1]]
    pairs += [("", "Water is made"), ("one two ", "three"), ("long " * 80, "end of it"), ("x", "y " * 50)]
    asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    for mine, other in zip(ours.loglikelihood(asked), theirs.loglikelihood(asked), strict=True):
        assert mine[0] == pytest.approx(other[0], abs=TOLERANCE_NATS, rel=1e-6)
        assert mine[1] == other[1]


def test_a_continuation_longer_than_the_context_is_refused(model_directory):
    adapter = charter_lm(load_language_model(model_directory), batch=3, seed=1)
    with pytest.raises(DataError, match="200 tokens, where the model takes 128"):
        adapter.loglikelihood([Instance("loglikelihood", {}, ("x", "y " * 100), 0)])


def test_rolling_log_likelihoods_too_beyond_the_context(model_directory):
    ours = charter_lm(load_language_model(model_directory), batch=3, seed=1)
    theirs = HFLM(pretrained=str(model_directory), device="cpu", dtype="float32", batch_size=2)
    texts = ["Water is made of hydrogen.", "the sun and the cat and the stone " * 40]
    asked = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(texts)]
    mine, other = ours.loglikelihood_rolling(asked), theirs.loglikelihood_rolling(asked)
    assert all(math.isfinite(value) for value in mine)
    assert mine == pytest.approx(other, rel=1e-5)


def test_greedy_answers_are_those_of_the_harness_own_model(model_directory):
    ours = charter_lm(load_language_model(model_directory), batch=3, seed=1)
    theirs = HFLM(pretrained=str(model_directory), device="cpu", dtype="float32", batch_size=2)
    settings = {"until": ["e", "\n"], "max_gen_toks": 16, "do_sample": False}
    asked = [
        Instance("generate_until", {}, (item[0], dict(settings)), index)
        for index, item in enumerate(items[0] for items in ITEMS.values())
    ]
    assert ours.generate_until(asked) == theirs.generate_until(asked)


def test_draws_hang_on_the_question_and_not_on_its_neighbours(model_directory):
    adapter = charter_lm(load_language_model(model_directory), batch=1, seed=1)
    settings = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    asked = [Instance("generate_until", {}, (text, settings), index) for index, text in enumerate(["one", "two"])]
    both = adapter.generate_until(asked)
    assert adapter.generate_until(asked[::-1]) == both[::-1]
    other = charter_lm(load_language_model(model_directory), batch=1, seed=2)
    assert other.generate_until(asked) != both
