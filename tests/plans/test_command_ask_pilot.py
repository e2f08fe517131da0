"""`charter plan ask -C DIR`: what finished sweeps say of labels, judge and method, and what they say nothing of."""

import io
import json
import math

import pytest
from rich.console import Console
from typer.testing import CliRunner

from charter.api import next_purchases
from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.cli.main import app
from charter.engines.project import load_project
from charter.evaluate.figures import figure_of
from charter.evaluate.statistics import ConfidenceInterval
from charter.report.pilot import print_pilot
from charter.run.graph import build_pipeline, job_of
from charter.run.sweep import sweep_points
from charter.templates.shipped import find_template, write_template

JUDGES = """\
models:
  small: {architecture: {hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 64, vocab_size: 512},
          tokenizer: {train_on: [lm_texts], vocab_size: 512}}
  middle: {architecture: {hidden_size: 64, num_layers: 4, num_heads: 4, intermediate_size: 176, vocab_size: 512},
           tokenizer: {train_on: [lm_texts], vocab_size: 512}}
  large: {architecture: {hidden_size: 128, num_layers: 4, num_heads: 4, intermediate_size: 352, vocab_size: 512},
          tokenizer: {train_on: [lm_texts], vocab_size: 512}}
  huge: {architecture: {hidden_size: 4096, num_layers: 32, num_heads: 32, intermediate_size: 11008, vocab_size: 512},
         tokenizer: {train_on: [lm_texts], vocab_size: 512}}
"""
METRIC = "metric: {stage: eval, figure: win_rate.policy}"
SWEEPS = f"""
resources: {{infra: on_prem, accelerators: [RTX4090:2], num_nodes: 1, price: $1000/h}}
sweeps:
  labels: {{over: {{pipeline.label.pairs: [800, 1600, 3200]}}, seeds: 2, {METRIC}}}
  judges: {{over: {{pipeline.label.judge: [small, middle, large, huge]}}, {METRIC}}}
  methods: {{over: {{pipeline.eval.policy: [ppo, ppo_control, sl_cai]}}, seeds: 2, seeded: [eval], {METRIC}}}
  rates: {{over: {{pipeline.ppo.learning_rate: [1.0e-4, 2.0e-4, 4.0e-4]}}, {METRIC}}}
"""
SHARES = {
    "labels": {800: 0.50, 1600: 0.60, 3200: 0.69},
    "judges": {"small": 0.69, "middle": 0.71, "large": 0.73},
    "methods": {"ppo": 0.69, "ppo_control": 0.59},
}
"""The file as it stands is a point of all three: 3,200 pairs, the small judge, ppo."""


def write_project(tmp_path):
    write_template(find_template("cai-smoke"), tmp_path)
    path = tmp_path / "charter.yaml"
    text = (
        path.read_text()
        .replace("models:\n", JUDGES)
        .replace("against: sl_cai", "against: sft")
        .replace("pairs: 32", "pairs: 3200")
    )
    text = text.replace("resources: {infra: local, cpus: 1, max_parallel_stages: 2}\n", SWEEPS)
    path.write_text(
        text.replace("  judge:    {kind: judge", "  taught:   {kind: judge").replace("judge: judge", "judge: small")
    )
    return tmp_path


def publish(root, name, shares):
    """Finish the evaluation of every point that has a share, as a stage process would."""
    points = sweep_points(root, load_project(root), name)
    for item in points:
        (value,) = item.point.values.values()
        if value not in shares:
            continue
        share = shares[value] + 0.004 * (item.point.repetition - 0.5)
        interval = ConfidenceInterval(low=share - 0.02, high=share + 0.02)
        figure = figure_of("win_rate.policy", "Policy preferred", share, interval, 400, "share", "Wilson")
        pipeline = build_pipeline(item.project, root)
        stage = pipeline.stages["eval"]
        stage.directory.mkdir(parents=True, exist_ok=True)
        write_job(stage.directory, job_of(stage, item.project, {"threads": 1}))
        content = json.dumps({"schema": "charter.results/1", "figures": [vars(figure)]})
        StageDir(stage.directory).publish_outputs(
            lambda out, content=content: (out / "results.json").write_text(content) and None, step=1, target_step=1
        )


@pytest.fixture(scope="module")
def pilot(tmp_path_factory):
    root = write_project(tmp_path_factory.mktemp("pilot"))
    for name, shares in SHARES.items():
        publish(root, name, shares)
    return root


@pytest.fixture(scope="module")
def free(pilot):
    """What is said without a limit."""
    return told(pilot)


def ask(root, *words):
    return CliRunner().invoke(app, ["plan", "ask", "-C", str(root), *words], catch_exceptions=True)


def told(root, *words):
    done = ask(root, *words, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def choices_of(said):
    (ranking,) = said["rankings"]
    return {(item["what"], item["new"]): item for item in ranking["choices"]}


def test_choices_are_ranked_by_the_gain_that_runs_show(free):
    choices = choices_of(free)
    assert list(choices)[:2] == [("labels", "12,800"), ("judge", "large")]
    labels = choices["labels", "12,800"]
    slope = math.log(0.69 / 0.31) / math.log(4)
    level = math.log(0.69 / 0.31) + slope * math.log(4)
    assert labels["gain"] == pytest.approx(1 / (1 + math.exp(-level)) - 0.69, abs=0.02)
    assert labels["low"] < labels["gain"] < labels["high"]
    assert (labels["old"], labels["shown"], labels["verdict"]) == ("3,200", True, "fits")
    assert labels["basis"] == "curve, 6 runs of 3 sizes, 4 times the largest"
    method = choices["method", "ppo_control"]
    assert method["gain"] == pytest.approx(-0.1)
    assert not method["shown"]


def test_three_sizes_of_one_seed_leave_a_wide_interval(free):
    judge = choices_of(free)["judge", "large"]
    assert judge["basis"] == "curve, 3 runs of 3 sizes"
    assert judge["gain"] == pytest.approx(0.04, abs=0.01)
    assert (judge["low"] < 0, judge["shown"]) == (True, False), "each share is known to two points only"


def test_what_has_no_pilot_gets_no_figure(free):
    assert ("judge", "huge") not in choices_of(free)
    silent = "\n".join(free["no_pilot"])
    for text in (
        "no pilot of judge huge: the sizes that were run reach to",
        "no pilot of method sl_cai: it has no figure",
        "pipeline.ppo.learning_rate is a setting, not bought",
    ):
        assert text in silent


def test_two_sizes_are_no_curve(tmp_path):
    project = write_project(tmp_path)
    publish(project, "labels", {800: 0.5, 1600: 0.6})
    done = ask(project)
    assert done.exit_code != 0
    text = " ".join(done.stdout.split())
    assert "No pilot of labels in sweep labels: 2 of 3 sizes of pipeline.label.pairs have a figure" in text
    assert "No pilot of judge in sweep judges: 0 of 3 sizes" in text


def test_a_budget_buys_what_it_can_pay(pilot, free):
    (dear,) = (item["usd"] for (what, _), item in choices_of(free).items() if what == "labels")
    screen = Console(file=io.StringIO(), width=200)
    print_pilot(next_purchases(pilot, budget_usd=dear - 2), screen)
    text = " ".join(screen.file.getvalue().split())
    assert "Expected gain in win_rate.policy of eval, to maximise" in text
    assert "First: pipeline.label.pairs=6400, +" in text
    assert "all intervals hold at once" in text


def test_a_project_without_a_sweep_is_told_how_to_make_one(tmp_path):
    write_template(find_template("cai-smoke"), tmp_path)
    done = ask(tmp_path)
    assert "no sweep of charter.yaml has a metric" in str(done.exception)


def test_options_of_the_question_do_not_go_with_a_project(pilot):
    done = ask(pilot, "--hardware", "H100:8", "--kind", "dpo", "--pairs", "5k")
    assert "--kind, --hardware, --pairs: the project of -C says it" in str(done.exception)
