import json
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.cli.scale import count_of
from charter.errors import DataError, InfeasibleError, UsageError
from charter.physics.scaling.laws import BESIROGLU_2024
from charter.physics.shapes import count_parameters
from charter.plan.training_run import dense_shape, utilisation_of


def invoke(*arguments):
    return CliRunner().invoke(app, ["plan", "scale", *arguments], catch_exceptions=True)


def printed(*arguments):
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def runs(tmp_path):
    rows = [
        (size, tokens, BESIROGLU_2024.loss(size, tokens))
        for size in (1e7, 3e7, 1e8, 3e8)
        for tokens in (1e9, 4e9, 2e10)
    ]
    file = tmp_path / "runs.csv"
    file.write_text("parameters,tokens,loss\n" + "".join(f"{n},{d},{loss}\n" for n, d, loss in rows))
    return file


def test_a_law_is_fitted_written_and_used(runs, tmp_path):
    law = tmp_path / "law.json"
    found = printed("fit", str(runs), "-o", str(law), "--bootstrap", "10")
    assert found["constants"]["size_exponent"] == pytest.approx(0.3478, abs=1e-4)
    assert found["bands"]["size_exponent"]["p10"] <= found["constants"]["size_exponent"]
    assert json.loads(law.read_text())["schema"] == "charter.scaling-law/1"
    told = printed("predict", "--law", str(law), "-N", "1B", "-D", "20B")
    assert told["loss"]["p50"] == pytest.approx(BESIROGLU_2024.loss(1e9, 2e10), rel=1e-4)
    plan = printed("plan", "--law", str(law), "--compute", "1e21", "--mfu", "0.4", "--price", "2")
    assert plan["parameters"]["p50"] == pytest.approx(BESIROGLU_2024.optimal(1e21)[0], rel=0.01)


def test_the_fit_is_drawn_for_people(runs, tmp_path):
    page = tmp_path / "law.html"
    done = invoke("fit", str(runs), "-o", str(tmp_path / "law.json"), "--bootstrap", "5", "--html", str(page))
    assert done.exit_code == 0, done.output
    for text in ("L = E + A / N^a + B / D^b", "predicted from the smaller ones", "best loss by compute", "●"):
        assert text in done.stdout
    drawn = page.read_text()
    assert drawn.count('<circle class="run"') == 12
    assert "http" not in drawn.replace("http-equiv", "")
    ElementTree.fromstring(drawn[drawn.index("<svg") : drawn.index("</svg>") + 6])


def test_a_bad_file_tells_every_line(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("parameters,tokens,loss\n1e7,1e9,x\n1e8,-1,3\n")
    done = invoke("fit", str(file))
    assert isinstance(done.exception, DataError)
    assert [line.split(": ")[0] for line in str(done.exception).splitlines()] == ["runs.csv:2", "runs.csv:3"]


def test_worked_example_8_as_a_command():
    found = printed(
        "plan",
        "-N",
        "70e9",
        "-D",
        "2e12",
        "-a",
        "A100-80GB",
        "--gpus",
        "2048,4096",
        "--mfu",
        "llama2-70b",
        "--price",
        "2",
    )
    first, second = found["schedules"]
    assert first["useful_days"] == pytest.approx(35.0, abs=0.05)
    assert second["useful_days"] == pytest.approx(17.5, abs=0.05)
    assert first["days"]["p10"] < first["days"]["p50"] < first["days"]["p90"]
    assert first["usd"]["p50"] == pytest.approx(first["gpu_hours"]["p50"] * 2)
    assert second["effective_share"] < first["effective_share"] < 1


def test_a_budget_is_spent():
    found = printed("plan", "--budget", "$1_000_000", "--gpus", "256", "--mfu", "40%", "--price", "2.5")
    assert found["schedules"][0]["usd"]["p50"] == pytest.approx(1e6, rel=1e-3)
    assert found["tokens_per_parameter"] == pytest.approx(19, abs=2)
    twice = printed("plan", "--budget", "2M", "--gpus", "256", "--mfu", "40%", "--price", "2.5")
    assert twice["compute_flops"] / found["compute_flops"] == pytest.approx(2, rel=0.02)


def test_the_planners_own_step_time():
    found = printed("plan", "-N", "7B", "-D", "140B", "-a", "H100", "--gpus", "64,128", "--price", "2")
    few, many = found["schedules"]
    assert 0.2 < many["utilisation"] <= few["utilisation"] * 1.05 < 0.7
    assert few["layout"].startswith("zero")
    assert few["useful_days"] == pytest.approx(6 * 7e9 * 140e9 / (64 * 989.4e12 * few["utilisation"]) / 86400, rel=1e-6)


def test_a_budget_is_not_exceeded_where_the_planner_chooses_layouts():
    found = printed("plan", "--budget", "2k", "--gpus", "8", "--price", "2.5")
    assert 0.9 * 2_000 < found["schedules"][0]["usd"]["p50"] <= 2_000 * 1.001


def test_experts_count_what_a_token_passes_through():
    found = printed(
        "plan", "--model", "deepseek-ai/DeepSeek-V3", "-D", "1T", "-a", "H800", "--gpus", "2048", "--price", "2"
    )
    assert found["parameters"]["p50"] == pytest.approx(37.5e9, rel=0.02)
    assert 0.05 < found["schedules"][0]["utilisation"] < 0.5


def test_a_model_that_fits_nowhere_says_what_would():
    done = invoke("plan", "-N", "1T", "-D", "2T", "--gpus", "8")
    assert isinstance(done.exception, InfeasibleError)
    assert "would fit on" in str(done.exception)


def test_limited_data_is_repeated_for_what_it_is_worth():
    free = printed("plan", "--compute", "1e23", "--mfu", "0.4", "--price", "2")
    short = printed("plan", "--compute", "1e23", "--mfu", "0.4", "--price", "2", "--unique-tokens", "50B")
    assert short["worth_tokens"] < short["tokens"]["p50"]
    assert short["loss"]["p50"] > free["loss"]["p50"]
    assert short["parameters"]["p50"] > free["parameters"]["p50"]
    naive = printed(
        "predict", "-N", str(free["parameters"]["p50"]), "-D", str(free["tokens"]["p50"]), "--unique-tokens", "50B"
    )
    assert short["loss"]["p50"] <= naive["loss"]["p50"]


def test_serving_asks_for_a_smaller_model():
    found = printed("plan", "--compute", "1e23", "--mfu", "0.4", "--price", "2", "--generated-tokens", "1T")
    assert found["serving_aware"]["num_parameters"] < found["parameters"]["p50"]


def test_a_catalog_model_gives_its_size_and_tokens_their_optimum():
    found = printed("plan", "--model", "Llama-3.1-8B", "-D", "1T", "--mfu", "0.4", "--price", "2")
    assert found["parameters"]["p50"] == pytest.approx(8.03e9, rel=0.01)
    alone = printed("plan", "--tokens", "1.4T", "--mfu", "0.4", "--price", "2")
    assert alone["parameters"]["p50"] == pytest.approx(7e10, rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan",), "give --budget"),
        (("plan", "--compute", "1e23", "--budget", "1M"), "not both"),
        (("plan", "-N", "7B", "-D", "1T", "--budget", "1M"), "fix the compute"),
        (("plan", "--compute", "1e23", "--mfu", "140%"), "llama2-70b"),
        (("plan", "--compute", "1e23", "--gpus", "many"), "2048,4096"),
        (("plan", "--compute", "1e23", "--price", "free"), "--price"),
        (("plan", "--compute", "lots"), "--compute lots"),
        (("plan", "-N", "7B", "-D", "1T", "--gpus", "13"), "whole nodes"),
        (("predict", "-N", "7B", "-D", "1T", "--law", "nobody"), "kaplan2020"),
    ],
)
def test_what_cannot_be_done_says_what_would_work(arguments, message):
    done = invoke(*arguments)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_counts_are_read_as_people_write_them():
    assert [count_of(text, "-N") for text in ("8e9", "8B", "1.5T", "70_000")] == [8e9, 8e9, 1.5e12, 7e4]
    with pytest.raises(UsageError, match="above zero"):
        count_of("-3", "-N")


@pytest.mark.parametrize("size", [1e8, 1e9, 7e9, 70e9, 140e9, 280e9, 1e12])
def test_a_dense_shape_of_any_size_comes_close(size):
    assert count_parameters(dense_shape(size)[0]).total == pytest.approx(size, rel=0.12)


def test_published_utilisations():
    assert utilisation_of("llama2-70b")[0] == pytest.approx(0.435, abs=0.0005)


def test_a_size_and_the_model_of_that_size_plan_alike():
    by_size = printed("plan", "-N", "6.74B", "-D", "2T", "-a", "A100-80GB", "--gpus", "1024")
    by_name = printed("plan", "--model", "meta-llama/Llama-2-7b-hf", "-D", "2T", "-a", "A100-80GB", "--gpus", "1024")
    hours = [answer["schedules"][0]["gpu_hours"]["p50"] for answer in (by_size, by_name)]
    assert hours[0] == pytest.approx(hours[1], rel=0.002)
