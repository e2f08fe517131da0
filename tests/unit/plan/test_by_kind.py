"""Questions without a file: the project that they stand for, what is assumed, and what is refused."""

import io
import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from charter.catalog.models import SIZES
from charter.cli.ask import planner
from charter.cli.inquiry import problem_of_question
from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import InfeasibleError, Problem, SpecError, UsageError
from charter.plan.ask import WORDS, Inquiry, Rung, kind_file, kind_of, most_data, rungs, with_amount
from charter.plan.project_plan import plan_project
from charter.plan.stage_plan import PlannedSamples
from charter.report.plan_notes import sample_lines

KINDS = tuple(dict.fromkeys(WORDS.values()))
GPUS = "H100:8"


def run(*words):
    return CliRunner().invoke(app, list(words))


def project_of(text, tmp_path):
    (tmp_path / "charter.yaml").write_text(text)
    return load_project(tmp_path / "charter.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_stands_for_a_file_that_plans(kind, tmp_path):
    project = project_of(kind_file(Inquiry(kind=kind, accelerators=GPUS)).text, tmp_path)
    plan = plan_project(project, tmp_path)
    assert plan.seconds.p50 > 0
    assert plan.usd is not None


@pytest.mark.parametrize(
    ("kind", "words"), [("cai", {"model": "8B", "judge": "gpt-4o"}), ("label", {"model": "gpt-4o", "pairs": 1_000})]
)
def test_a_judge_with_a_price_of_tokens_is_an_api(kind, words, tmp_path):
    inquiry = Inquiry(kind=kind, **words, judge_price="2.5,10", accelerators=GPUS)
    project = project_of(kind_file(inquiry).text, tmp_path)
    assert project.models["judge"].model == "gpt-4o"
    assert project.serving["judge"].usd_per_million_output_tokens == 10.0
    calls = plan_project(project, tmp_path).stage("label").endpoint_usd
    assert calls.p50 > 0
    dearer = project_of(kind_file(replace(inquiry, judge_price="5,20")).text, tmp_path)
    assert plan_project(dearer, tmp_path).stage("label").endpoint_usd.p50 == pytest.approx(2 * calls.p50)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cai", "8B", "--judge", "gpt-4o"), "of a model that is only an API, --judge-price IN,OUT says"),
        (("label", "gpt-4o", "--judge-price", "2.5"), "--judge-price 2.5: give usd per million tokens"),
        (("label", "gpt-4o", "--judge-price", "free,10"), "--judge-price free,10: give usd per million tokens"),
        (("cai", "8B", "--judge-price", "2.5,10"), "--judge names the judge"),
        (("sft", "8B", "--judge-price", "2.5,10"), "--judge-price does not apply to sft"),
    ],
)
def test_prices_of_a_judge_that_say_nothing_are_refused(words, says):
    answer = run("plan", *words)
    assert isinstance(answer.exception, UsageError)
    assert says in str(answer.exception)


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        (Inquiry(kind="sft", tokens=10**8), "data.texts.rows * data.texts.mean_tokens", 10**8),
        (Inquiry(kind="sft", seq_len=8192), "pipeline.sft.seq_len", 8192),
        (Inquiry(kind="sft", lora=16), "pipeline.sft.adapter.rank", 16),
        (Inquiry(kind="dpo", pairs=1_000), "data.pairs.rows", 1_000),
        (Inquiry(kind="ppo", prompts=20_000, answers=1_000), "pipeline.rl.mean_new_tokens", 1_000),
        (Inquiry(kind="grpo", prompts=20_000), "pipeline.rl.samples_per_prompt", 8),
        (Inquiry(kind="sft", budget_usd=5_000.0), "budget.limit", 5_000.0),
        (Inquiry(kind="sft", deadline="3d"), "deadline", 3 * 86_400),
        (Inquiry(kind="sft", nodes=4), "resources.max_nodes", 4),
    ],
)
def test_what_is_said_stands_in_the_file(asked, field, value, tmp_path):
    project = project_of(kind_file(asked).text, tmp_path)

    def read(path):
        at = project
        for name in path.split("."):
            at = at[name] if hasattr(at, "keys") else getattr(at, name)
        return at

    product = 1
    for path in field.split(" * "):
        product *= read(path)
    assert product == pytest.approx(value, rel=1e-5)


def test_defaults_are_told_as_assumed_and_given_values_are_not():
    assert any("--tokens 100M" in line for line in kind_file(Inquiry(kind="sft")).assumed)
    assert not any("--tokens" in line for line in kind_file(Inquiry(kind="sft", tokens=5)).assumed)
    assert any(SIZES["8B"] in line for line in kind_file(Inquiry(kind="sft", model="8b")).assumed)


def test_what_a_kind_cannot_use_is_refused_with_what_it_takes():
    with pytest.raises(UsageError, match="--pairs, --judge do not apply to sft, which takes MODEL, --tokens"):
        kind_file(Inquiry(kind="sft", pairs=5, judge="8B"))
    with pytest.raises(UsageError, match="--tokens 0: give 1 or more"):
        kind_file(Inquiry(kind="sft", tokens=0))


def test_plan_without_a_file_prints_the_file_it_stands_for(tmp_path):
    saved = tmp_path / "charter.yaml"
    done = run("plan", "grpo", "Qwen2.5-7B", "--prompts", "20k", "--answers", "1k", "--on", GPUS, "--save", str(saved))
    assert done.exit_code == 0, done.output
    assert "so no reference" in done.output.replace("\n", " ")
    printed = json.loads(
        run("plan", "grpo", "7B", "--prompts", "20k", "--answers", "1k", "--on", GPUS, "--json").stdout
    )
    assert printed["charter_yaml"] == saved.read_text()
    again = json.loads(run("plan", str(saved), "--json").stdout)
    assert again["stages"] == printed["stages"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "llama3-8b"), "meta-llama/Meta-Llama-3-8B is a model; what shall it do? charter plan sft llama3-8b"),
        (("plan", "mistral-7b"), "did you mean the model Mistral-7B-v0.3?"),
        (("plan", "lora"), "charter plan sft 8B --lora 16"),
        (("plan", "lora", "70B", "--on", GPUS), "charter plan sft 70B --on H100:8 --lora 16"),
        (("plan", "lora", "70B", "--lora", "8"), "charter plan sft 70B --lora 8"),
        (("plan", "xyz"), "kinds: pretrain, sft, pm, dpo, ppo, grpo, generate, label, cai"),
        (("plan", "sft", "8B", "--lora", "0"), "--lora 0: give 1 or more"),
        (
            ("plan", "mem", "8B", "--on", "H100:8", "--lora", "4096"),
            "--lora 4096: a rank of 4,096 is not below",
        ),
        (
            ("plan", "sft", "8B", "--lora", "16k"),
            "--lora 16000: a rank of 16,000 is not below the width of the model",
        ),
        (("plan", "sft", "8B", "--tokens", "-5"), "--tokens -5: give 1 or more"),
        (("plan", "sft", "8B", "--nodes", "0"), "--nodes 0: give 1 or more"),
        (("plan", "sft", "8B", "--budget", "0"), "--budget 0: give more than 0"),
        (("plan", "sft", "8B", "--deadline", "0h"), "--deadline 0h: give more than 0"),
        (("plan", "sft", "8B", "--on", "H100:0"), "give 1 accelerator or more"),
        (("plan", "sft", "8B", "--on", "A100:8,H100:8"), "--on A100:8 --what-if accelerators=H100:8"),
        (("plan", "sft", "8B", "--price", "2"), "say which, like --on H100:8"),
        (("plan", "sft", "8B", "--market", "spots"), "give spot, on_demand or any"),
        (("plan", "sft", "8B", "--market", "spot", "--on", GPUS, "--price", "2"), "on no market"),
        (("plan", "sft", "8B", "--sweep", "x"), "--sweep x: is of projects"),
        (("plan", "sft", "8B", "-t", "cai-8b"), "--template cai-8b: is of projects"),
        (("plan", "sft", "8B", "-C", "elsewhere"), "-C elsewhere: is of projects"),
        (("plan", "--force"), "--force: is for questions"),
        (("plan", "sft", "8B", "--what-if", "tokens=many"), "--tokens many"),
        (("plan", "sft", "8B", "--on", GPUS, "--all-hardware"), "ask for opposites"),
        (("plan", "sft", "8B", "--what-if", "pairs=5"), "--pairs does not apply to sft"),
        (("plan", "sft", "8B", "--gpus", "8"), "write both, like H100:8"),
        (("plan", "sft", "8B", "--set", "resources.accelerators=8xH100"), "write H100:8"),
        (("plan", "sft", "8B", "--lr", "1e-5"), "--lr: say --set pipeline.sft.learning_rate=1e-5"),
        (("plan", "grpo", "7B", "--lr=1e-6"), "--lr: say --set pipeline.rl.learning_rate=1e-6"),
        (("plan", "cai", "8B", "--lr", "1e-5"), "say it with --set pipeline.STAGE.learning_rate=VALUE"),
        (("plan", "--lr", "1e-5"), "say it with --set pipeline.STAGE.learning_rate=VALUE"),
        (("plan", "sft", "8B", "--epochs", "3"), "say --set pipeline.sft.epochs=3"),
        (("plan", "dpo", "8B", "--tp", "4"), "say --set pipeline.dpo.resources.tensor=4"),
        (("plan", "grpo", "7B", "--batch-size", "64"), "like it are --set pipeline.rl.minibatch=VALUE and"),
        (("plan", "sft", "8B", "--max-length", "4096"), "it is --seq 4096 here"),
        (("plan", "sft", "8B", "--model", "70B"), "stands after the kind: charter plan sft 70B"),
        (("plan", "sft", "8B", "--num-gpus", "4"), "like --on H100:4"),
        (("plan", "dpo", "8B", "--dataset", "x"), "say how much there is with --pairs"),
        (("plan", "dpo", "8B", "--peft"), "it is --lora here"),
        (("plan", "--gpus", GPUS), "--gpus: is for questions without a file"),
        (("plan", "ppo", "8B", "--turns", "3"), "--turns does not apply to ppo"),
        (("plan", "mem", "8B", "-a", "H100:1", "--mode", "infer", "--rank", "8"), "--rank 8: is of adapters"),
        (("sft", "8B"), "did you mean plan sft 8B?"),
        (("models",), "did you mean catalog models?"),
        (("plan", "stf", "8B"), "did you mean 'sft'?"),
        (("plan", "sft", "no-such-model"), "no model is called"),
        (("plan", "--tokens", "5"), "--tokens: is for questions without a file"),
        (("plan", "sft", "8B", "--tokens", "many"), "--tokens many"),
        (("plan", "sft", "8B", "--deadline", "soon"), "--deadline soon"),
        (("ask", "--kind", "stf"), "did you mean 'sft'?"),
        (("ask", "--on", GPUS, "--hardware", GPUS), "say the same"),
    ],
)
def test_a_slip_is_one_clear_error(words, says):
    done = run(*words)
    assert isinstance(done.exception, UsageError), done.output
    assert says in str(done.exception)


QUESTION = ("plan", "sft", "1B", "--tokens", "10M", "--on", GPUS)


def test_a_question_is_planned_again_with_changes():
    changes = ("nodes=2", "accelerators=A100:8", "on=L4:8", "market=spot", "tokens=20M", "lora=8")
    done = run(*QUESTION, *(word for change in changes for word in ("--what-if", change)), "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    plans = {row["change"]: row["plan"]["stages"][0] for row in answer["what_if"]}
    assert plans["nodes=2"]["num_nodes"] == 2
    assert plans["accelerators=A100:8"]["accelerator"].startswith("A100")
    assert plans["on=L4:8"]["accelerator"] == "L4"
    assert plans["market=spot"]["market"] == "spot"
    assert plans["tokens=20M"]["seconds"]["p50"] > 1.1 * answer["stages"][0]["seconds"]["p50"]
    assert plans["lora=8"]["usd"]["p50"] != answer["stages"][0]["usd"]["p50"]


def test_why_a_change_does_not_fit_is_told_in_options():
    done = run(*QUESTION, "--what-if", "on=T4:1", "--what-if", "on=H100:7", "--json")
    reasons = [row["reason"] for row in json.loads(done.stdout)["what_if"]]
    assert "an adapter (--lora 64)" in reasons[0]
    assert "--nodes takes several" in reasons[1]


def test_a_file_that_is_there_stays_without_force(tmp_path, monkeypatch):
    monkeypatch.setattr("charter.plan.project_plan.plan_project", lambda *_, **__: pytest.fail("planned"))
    saved = tmp_path / "charter.yaml"
    saved.write_text("mine")
    done = run(*QUESTION, "--save", str(saved))
    assert "is there already; give another name, or --force" in str(done.exception)
    assert saved.read_text() == "mine"
    for option in ("--save", "--html", "--output"):
        done = run(*QUESTION, option, str(tmp_path / "none" / "x"))
        assert "give a file in a directory that exists" in str(done.exception)


def test_the_saved_file_is_what_was_planned(tmp_path):
    saved = tmp_path / "charter.yaml"
    saved.write_text("mine")
    words = (*QUESTION, "--set", "pipeline.sft.epochs=3", "--save", str(saved), "--force", "--json")
    printed = json.loads(run(*words).stdout)
    assert printed["charter_yaml"] == saved.read_text()
    assert "over this, --set pipeline.sft.epochs=3" in printed["assumed"]
    assert json.loads(run("plan", str(saved), "--json").stdout)["stages"] == printed["stages"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("sft 8B --tokens 100M --budget 5", ("give --budget 2", "or --tokens 2", "or --market any,")),
        ("grpo 1B --budget 1", ("give --budget ", "or --prompts ")),
        ("dpo 8B --budget 5", ("or --pairs ",)),
        ("generate 8B --budget 1", ("or --prompts ",)),
        ("label 70B --budget 5", ("of the work at p90: --pairs ",)),
        ("cai 8B --budget 160", ("or --set pipeline.ppo.episodes=",)),
        ("sft 8B --tokens 100M --set pipeline.sft.epochs=2 --budget 9", ("or --set pipeline.sft.epochs=0.",)),
        ("sft 8B --budget 5 --objective fastest", ("raise --budget to that, allow --market any",)),
        ("sft 8B --deadline 1min --fail-over-deadline", ("feasible from --deadline ", "with --nodes 2 it is")),
        ("sft 70B --on H100:1", ("--lora 64", "a shorter --seq")),
        ("sft 8B --on L4:8 --market spot", ("no spot price is known there; --market any",)),
        ("sft 8B --on TPU-v5e:8 --nodes 1", ("would fit on: 2 nodes x 8 TPU-v5e, 8 x TPU-v6e, 2 x TPU-v5p; or use a",)),
        ("sft 8B --on RTX4090:8 --lora 8 --budget 5 --fail-over-budget", ("a stage has no price; give --price",)),
    ],
)
def test_remedies_of_a_question_are_options(words, says):
    done = run("plan", *words.split(), *(() if "--on" in words else ("--on", GPUS)))
    text = str(done.exception)
    for part in says:
        assert text.count(part) == 1
    advice = "".join(line for line in done.stdout.splitlines() if line.startswith("Nearest change"))
    for key in ("budget.limit", "use_spot", "max_nodes", "epochs:", "rank:", "seq_len", "num_prompts:", "episodes:"):
        assert key not in text + advice


def test_less_data_that_is_proposed_keeps_the_budget():
    asked = ("plan", "sft", "8B", "--on", GPUS, "--tokens")
    tokens = str(run(*asked, "1B", "--budget", "100").exception).partition("or --tokens ")[2].split()[0]
    usd = json.loads(run(*asked, tokens, "--json").stdout)["total"]["usd"]
    assert 90 < usd["p90"] < 102, "about: a start is no cheaper for less work"


def test_a_size_that_nobody_offers_is_one_line():
    head, *lines = str(run("plan", "sft", "1B", "--on", "H100:7").exception).splitlines()
    assert head.endswith("what --on asks for")
    assert len(lines) == 1
    assert "the machines on offer have 1 or 8, and --nodes takes several of them" in lines[0]
    assert "--price plans one of yours" in lines[0]


def test_more_than_a_machine_has_are_several_machines(tmp_path):
    file = kind_file(Inquiry(kind="sft", accelerators="H100:1024"))
    resources = project_of(file.text, tmp_path).resources
    assert (resources.accelerators, resources.num_nodes) == (("H100:8",), 128)
    assert "--on H100:1024: 128 machines of H100:8, since none has that many" in file.assumed


def test_the_engine_of_other_accelerators_is_assumed():
    done = run("plan", "sft", "8B", "--on", "v5p:8", "--lora", "16")
    assert "engine maxtext: native does not run on v5p:8" in done.output
    text = " ".join(done.output.split())
    assert "sft does not run as it is written: engine maxtext, adapter: its adapters are of its other trainer" in text
    assert "packing" not in text


def test_what_an_engine_cannot_do_is_listed_before_a_run(tmp_path):
    run("plan", "sft", "8B", "--on", "H100:8", "--save", str(tmp_path / "charter.yaml"))
    text = run("check", str(tmp_path), "--set", "pipeline.sft.engine=megatron").stdout
    assert "It can be planned; to run it, mend this first:" in text
    assert "pipeline.sft.packing: megatron cannot express it: a row begins anew" in text
    assert "mend this first" not in run("check", str(tmp_path)).stdout


def test_processors_stand_for_no_other_card():
    file = kind_file(Inquiry(kind="sft", accelerators="cpu:4"))
    assert not any("--on" in line or "--market" in line for line in file.assumed)


def test_the_question_has_no_file_to_name():
    problem = Problem(
        file="/tmp/x/charter.yaml", line=3, source_line="price: -1", path="resources.price", message="bad"
    )
    assert str(problem_of_question(problem)) == "--price: bad"
    asked = replace(problem, file="--set resources.price=-1", line=None, source_line="")
    assert problem_of_question(asked) == asked


@pytest.mark.parametrize(
    ("inquiry", "says"),
    [
        (Inquiry(kind="grpo"), "8 answers to each prompt"),
        (Inquiry(kind="ppo"), "one answer to each prompt"),
        (Inquiry(kind="ppo"), "a reward model and a value model of the policy's size, and a frozen reference"),
        (Inquiry(kind="sft"), "conversations of 512 tokens, read once"),
        (Inquiry(kind="sft"), "all weights trained, where --lora 16 trains adapters"),
        (Inquiry(kind="sft", lora=8), "adapters on every linear matrix, with alpha 16, over a base of 16 bits"),
        (Inquiry(kind="dpo"), "a frozen reference beside the model"),
        (Inquiry(kind="sft"), "--market on_demand: spot is not looked at"),
        (Inquiry(kind="sft"), "--on any: every machine of the price book, up to 16 at once"),
        (Inquiry(kind="sft", accelerators="A100:8"), "--on A100: A100-SXM-40GB, not A100-PCIe-40GB, A100-PCIe-80GB or"),
    ],
)
def test_what_decides_the_cost_is_told_as_assumed(inquiry, says):
    assert says in "; ".join(kind_file(inquiry).assumed)


@pytest.mark.parametrize(("market", "use_spot"), [(None, False), ("on_demand", False), ("spot", True), ("any", "auto")])
def test_a_market_is_searched_as_asked(market, use_spot, tmp_path):
    file = kind_file(Inquiry(kind="sft", accelerators=GPUS, market=market))
    assert project_of(file.text, tmp_path).resources.use_spot == use_spot
    assert any("--market" in line for line in file.assumed) is (market is None)


def test_a_path_wins_over_a_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kind_of("sft") == "sft"
    (tmp_path / "sft").mkdir()
    done = run("plan", "sft")
    assert "there is no charter.yaml in" in str(done.exception)


def test_a_project_below_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "charter.yaml").write_text("name: demo\n")
    assert "one is in demo: give -C demo" in str(run("plan").exception)


QUESTIONS = {
    "what does supervised fine-tuning of 8B cost?": "plan sft Llama-3.1-8B --tokens 100M --on A100:8",
    "and on my own two cards, as adapters?": "plan sft 8B --lora 16 --tokens 10M --on 2x4090 --price 0.4",
    "GRPO with a rule": "plan grpo Qwen2.5-7B --prompts 20k --answers 1k --on H100:8",
    "GRPO with tools over several turns": "plan grpo Qwen2.5-7B --prompts 5k --turns 4 --on H100:8",
    "PPO with a reward model": "plan ppo 1B --prompts 5k --on H100:8",
    "DPO instead": "plan dpo 8B --pairs 60k --on H100:8",
    "a reward model": "plan rm 8B --pairs 100k --on A100:8",
    "Constitutional AI with a larger judge": "plan cai 8B --judge 70B --budget 5000 --on H100:8",
    "answers of a large model": "plan generate 70B --prompts 100k --on H100:8",
    "labels of a large judge": "plan label 70B --pairs 50k --on H100:8",
    "pretraining of a small model": "plan pretrain 1B --tokens 20B --on H100:8",
    "what can I train on four 4090?": "ask --hardware 4x4090 --price 0.4 --model 8B",
    "does 70B fit four 4090?": "plan mem 70B -a 4x4090 --lora 16 --mode qlora --recompute full --seq-len 512",
    "which models are known?": "catalog models",
}


@pytest.mark.parametrize("asked", QUESTIONS)
def test_a_newcomer_is_answered_without_a_file(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*QUESTIONS[asked].split())
    assert done.exception is None, done.output
    assert "error[" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_accelerators_named_alone_are_one_machine(tmp_path):
    for nodes, number in ((None, 1), (4, 4)):
        file = kind_file(Inquiry(kind="sft", accelerators="H100:8", nodes=nodes))
        assert project_of(file.text, tmp_path).resources.max_nodes == number
        assert any("one machine" in line for line in file.assumed) is (nodes is None)


def test_a_rank_means_adapters_in_a_plan_of_memory():
    adapters, all_weights = (
        json.loads(run("plan", "mem", "8B", "--gpus", "H100:8", "--json", *more).stdout)
        for more in (("--lora", "8"), ())
    )
    assert max(adapters["phases"].values()) < 0.8 * max(all_weights["phases"].values())


@pytest.mark.parametrize("command", [("plan",), ("check",)])
def test_a_rank_of_the_models_width_is_refused(command, tmp_path):
    text = kind_file(Inquiry(kind="sft", model="1B", lora=16, accelerators="H100:8")).text
    (tmp_path / "charter.yaml").write_text(text.replace("rank: 16,", "rank: 2048,"))
    done = run(*command, "-C", str(tmp_path))
    assert isinstance(done.exception, SpecError), done.output
    says = "pipeline.sft.adapter.rank: a rank of 2,048 is not below the width of the model, 2,048; 16 or 64 is usual"
    assert str(done.exception) == says


def plans(tmp_path):
    return lambda asked: plan_project(project_of(kind_file(asked).text, tmp_path), tmp_path)


def test_rungs_go_from_what_does_not_fit_to_what_does(tmp_path):
    inquiry = Inquiry(kind="sft", accelerators="RTX4090:4", nodes=1, price="0.4", tokens=10**8, budget_usd=60.0)
    rows = {(rung.size, rung.method): rung for rung in rungs(inquiry, plans(tmp_path))}
    assert rows["405B", "LoRA 16"].verdict == "does not fit"
    assert rows["70B", "LoRA 16"].verdict == "over budget"
    assert rows["8B", "all weights"].verdict == "fits"
    late = {rung.verdict for rung in rungs(replace(inquiry, model="8B", deadline="1h"), plans(tmp_path))}
    assert late == {"late"}


def test_most_data_keeps_the_budget_and_more_does_not(tmp_path):
    plan_of = plans(tmp_path)
    asked = Inquiry(kind="sft", model="8B", accelerators=GPUS, nodes=1, tokens=10**8, budget_usd=100.0)
    rung = Rung(inquiry=asked, size="8B", method="all weights", plan=plan_of(asked))
    best = most_data(rung, plan_of)
    assert best is not None
    assert best.verdict == "fits"
    more = with_amount(asked, int(1.26 * best.inquiry.tokens))
    assert replace(rung, plan=plan_of(more)).verdict == "over budget"
    assert most_data(replace(rung, plan=None), plan_of) is None


@pytest.mark.parametrize(("is_terminal", "is_quiet"), [(True, False), (True, True), (False, False)])
def test_a_terminal_alone_sees_what_is_planned(is_terminal, is_quiet, monkeypatch):
    """And not beside --json: whoever reads that reads the log too."""
    screen = io.StringIO()
    screen.isatty = lambda: is_terminal
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with planner(is_quiet=is_quiet) as plan_of:
        plan = plan_of(Inquiry(kind="sft", model="1B", accelerators="RTX4090:4", price="0.4"))
    assert plan.seconds.p50 > 0
    shown = "plan 1: charter plan sft 1B --on RTX4090:4 --price 0.4" in screen.getvalue()
    assert shown is (is_terminal and not is_quiet)
    assert bool(screen.getvalue()) is shown


def test_ask_names_the_largest_and_its_command():
    done = run("ask", "--hardware", GPUS, "--budget", "30", "--json")
    answer = json.loads(done.stdout)
    assert answer["best"] == next(row for row in answer["rows"] if row["verdict"] == "fits")
    command = answer["best"]["command"].split()[1:]
    assert run(*command).exit_code == 0
    assert "--tokens 100M: of all conversations" in answer["assumed"]
    nothing = run("ask", "--hardware", GPUS, "--budget", "0.01")
    assert isinstance(nothing.exception, InfeasibleError)
    assert str(nothing.exception) == "nothing fits; give a larger --budget or fewer --tokens"
    assert "Assumed of 1B, LoRA 16: MODEL 1B" in nothing.stdout


def test_hardware_without_an_offer_is_planned_as_ones_own(tmp_path):
    file = kind_file(Inquiry(kind="sft", model="1B", accelerators="RTX4090:4", nodes=1))
    assert any("no price list has RTX4090:4" in line for line in file.assumed)
    plan = plan_project(project_of(file.text, tmp_path), tmp_path)
    assert plan.seconds.p50 > 0
    assert plan.usd is None, "nobody said what it costs"
    assert "infra" not in kind_file(Inquiry(kind="sft", accelerators="H100:8")).text


def test_answers_to_read_have_a_price_or_a_reason(tmp_path):
    file = kind_file(Inquiry(kind="ppo", model="0.5B", accelerators="H100:8", prompts=20_000)).text
    plan = plan_project(project_of(file, tmp_path), tmp_path)
    stage = plan.stages[0]
    assert stage.sample_seconds == pytest.approx(0.01 * stage.option.seconds.p50)
    assert stage.to_json()["samples"]["usd_at_most"] == pytest.approx(0.01 * stage.compute_usd.p50 / 1e6, rel=1e-3)
    assert "for at most 1 % of the time on top" in next(sample_lines(plan))
    none = plan_project(project_of(file + "samples: {count: 0}\n", tmp_path), tmp_path)
    assert "samples" not in none.stages[0].to_json()
    assert list(sample_lines(none)) == []
    smaller = plan_project(project_of(file + "samples: {share: 0.005}\n", tmp_path), tmp_path)
    assert smaller.stages[0].sample_usd == pytest.approx(stage.sample_usd / 2)
    spread = replace(stage, samples=PlannedSamples(prompts=20, share=0.0, why_none="its model is compiled"))
    assert list(sample_lines(replace(plan, stages=(spread,)))) == [
        "Samples to read: none at rl: its model is compiled."
    ]


def test_an_explanation_calls_the_compared_model_by_a_noun():
    asked = ("plan", "-t", "cai-8b", "--set", "resources.accelerators=[H100:8]", "--set", "resources.max_nodes=1")
    text = " ".join(run(*asked, "--explain", "eval").output.split())
    assert "answers of the model compared with" in text
    assert "of against" not in text


@pytest.mark.parametrize("kind", ["sft", "dpo", "ppo"])
def test_what_has_no_bf16_is_planned_in_fp16(kind, tmp_path):
    """T4 and V100 have no products in bf16; one that is asked for all the same is refused, servers too."""
    file = kind_file(Inquiry(kind=kind, model="0.5B", accelerators="V100-32GB:8", lora=16))
    assert "dtype fp16: V100-SXM2-32GB has no bf16" in file.assumed
    assert plan_project(project_of(file.text, tmp_path), tmp_path).stages[0].option.dtype == "fp16"
    with pytest.raises(InfeasibleError, match="dtype bf16: V100-SXM2-32GB has none; dtype: fp16 runs there"):
        plan_project(project_of(file.text.replace("fp16", "bf16"), tmp_path), tmp_path)
    served = kind_file(Inquiry(kind="generate", model="0.5B", accelerators="V100-32GB:8"))
    with pytest.raises(InfeasibleError, match="vLLM is started in bf16"):
        plan_project(project_of(served.text, tmp_path), tmp_path)
