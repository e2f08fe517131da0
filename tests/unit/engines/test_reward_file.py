"""The list of rewards in other engines: one file, called as each engine calls it, with the numbers of Charter's own."""

import ast
import asyncio
import importlib.util
import inspect
import json
import math
import struct
import sys
import threading
from collections import namedtuple
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from charter.data import reward_functions
from charter.data.dataset import Turn
from charter.engines import render
from charter.engines.common.reward_file import row_text
from charter.engines.huggingface.adapter import HuggingFaceAdapter
from charter.engines.nemo_rl.adapter import NemoRlAdapter
from charter.engines.openrlhf.adapter import OpenRlhfAdapter
from charter.engines.prime_rl.adapter import PrimeRlAdapter
from charter.engines.project import engine_problems
from charter.engines.skyrl.adapter import SkyRlAdapter
from charter.engines.verl.adapter import VerlAdapter
from charter.errors import SpecError
from charter.spec.project import Project
from charter.spec.rewards import Environment, Reward, Rubric
from plain_stages import accepted_stage, handover, layout_of


def bonus(answer, truth, step=0.5):
    return None if truth is None else step * answer.count(str(truth))


def unknown(answer, seed):
    return 0.0


OWN = "\n".join(inspect.getsource(function) for function in (bonus, unknown))
FUNCTIONS = (
    Reward(name="right", kind="function", call="charter:number", arguments={"tolerance": 0.1}, weight=2.0),
    Reward(name="form", kind="function", call="charter:tags", arguments={"tags": ["answer"]}, weight=0.25),
    Reward(name="said", kind="function", call="own/bonus.py:bonus", arguments={"step": 0.5}, weight=-1.0),
)
PENALTY = Reward(name="short", kind="function", call="charter:overlong", arguments={"longest": 512, "cache": 128})
JUDGE = Reward(name="kind", kind="judge", model="judge", weight=0.5)
ANSWERS = ["4", "four", "<answer>4</answer>", "4 4 4", "", "4.05", "<answer>x</answer>", "-4", "1,000", "4\n"]
ROWS = [{"answer": 4}] * 8 + [{"answer": "1000"}, {}]
ENGINES = ("trl", "verl", "openrlhf", "nemo_rl", "prime_rl", "skyrl")


def stage_of(engine, *rewards, **changes):
    return accepted_stage(
        engine, "ppo", **{"estimator": "grpo", "samples_per_prompt": 4, "reward": None, **changes}, rewards=rewards
    )


def rendered(engine, *rewards, **changes):
    """The stage as it is rendered where it runs, with a process beside it that asks its judges."""
    stage = stage_of(engine, *rewards, **changes)
    return render(replace(handover(stage, layout_of(stage)), sources={"own/bonus.py": OWN}, is_run=True))


def refusal(engine, *rewards, **changes):
    with pytest.raises(SpecError) as caught:
        rendered(engine, *rewards, **changes)
    return {problem.path.rpartition(".")[2]: problem.message for problem in caught.value.problems}


def loaded(run, directory, monkeypatch, name="rewards"):
    """The module of a file of the export, all of whose files lie in a directory."""
    for place, text in run.files.items():
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        (directory / place).write_text(text)
    spec = importlib.util.spec_from_file_location(name, directory / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def expected(answer, row):
    """The weighted sum that Charter's own engine would give."""
    functions = {"number": reward_functions.number, "tags": reward_functions.tags, "bonus": bonus}
    values = {"answer": answer, "truth": row.get("answer")}
    each = [
        (item.weight, reward_functions.called(functions[item.call.rpartition(":")[2]], values, item.arguments))
        for item in FUNCTIONS
    ]
    return sum(weight * reward for weight, reward in each if reward is not None)


TURNS = [Turn("user", "2 + 2?")]
TEXTS = [row_text(TURNS, row, ROWS.index(row)) for row in ROWS]
TOTALS = [expected(answer, row) for answer, row in zip(ANSWERS, ROWS, strict=True)]


def by_trl(module, monkeypatch):
    completions = [[{"role": "assistant", "content": answer}] for answer in ANSWERS]
    columns = []
    for number, item in enumerate(FUNCTIONS):
        column = getattr(module, f"reward_{number}")
        assert column.__name__ == item.name
        given = column(
            prompts=[[{"role": "user", "content": "2 + 2?"}]] * 10, completions=completions,
            completion_ids=[[1, 2]] * 10, charter=TEXTS, trainer_state=None, log_extra=None, log_metric=None,
        )  # fmt: skip
        columns.append([0.0 if reward is None else item.weight * reward for reward in given])
    return [sum(row) for row in zip(*columns, strict=True)]


def by_verl(module, monkeypatch):
    scores = [
        module.compute_score(data_source="ppo", solution_str=answer, ground_truth=text, extra_info={"index": 0})
        for answer, text in zip(ANSWERS, TEXTS, strict=True)
    ]
    assert all(set(score) == {"score", "reward_right", "reward_form", "reward_said"} for score in scores)
    return [score["score"] for score in scores]


def by_openrlhf(module, monkeypatch):
    monkeypatch.setattr(module, "_SPECIAL", ["<|end|>"])
    given = [
        module.reward_func(["<|user|>2 + 2?<|end|>" + answer + "<|end|>"], ["<|user|>2 + 2?<|end|>"], [text])
        for answer, text in zip(ANSWERS, TEXTS, strict=True)
    ]
    assert all(item["rewards"] == item["scores"] for item in given)
    return [item["rewards"] for item in given]


def by_nemo_rl(module, monkeypatch):
    stand_in = {name: ModuleType(name) for name in ("ray", "torch", "nemo_rl.environments.interfaces")}
    stand_in["ray"].remote = lambda actor: actor
    stand_in["torch"].tensor, stand_in["torch"].ones, stand_in["torch"].bool = (
        list,
        lambda size, dtype: [True] * size,
        bool,
    )
    interfaces = stand_in["nemo_rl.environments.interfaces"]
    interfaces.EnvironmentInterface = object
    fields = "observations metadata next_stop_strings rewards terminateds answers"
    interfaces.EnvironmentReturn = namedtuple("EnvironmentReturn", fields)
    for name, item in {**stand_in, "nemo_rl": ModuleType("n"), "nemo_rl.environments": ModuleType("e")}.items():
        monkeypatch.setitem(sys.modules, name, item)
    spec = importlib.util.spec_from_file_location(
        "rewards_environment", module.__file__.replace("rewards.py", "rewards_environment.py")
    )
    environment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(environment)
    logs = [[{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": answer}] for answer in ANSWERS]
    stepped = environment.RewardsEnvironment({}).step(logs, [{"ground_truth": text} for text in TEXTS])
    assert stepped.terminateds == [True] * 10
    return stepped.rewards


def by_prime_rl(module, monkeypatch):
    """The taskset, over the few names of verifiers that it takes (tried with verifiers 0.4.0 itself)."""

    class Base:
        def __class_getitem__(cls, _):
            return cls

        def __init__(self, *values, **fields):
            self.data, self.config = values[0] if values else None, values[-1] if values else None
            self.__dict__.update(fields)

    stand_in = ModuleType("verifiers.v1")
    stand_in.Task, stand_in.Taskset, stand_in.TaskData, stand_in.TasksetConfig = (
        type(name, (Base,), {}) for name in ("Task", "Taskset", "TaskData", "TasksetConfig")
    )
    stand_in.reward = lambda function: function
    package = ModuleType("verifiers")
    package.v1 = stand_in
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.setitem(sys.modules, "verifiers.v1", stand_in)
    directory = Path(module.__file__).parent
    monkeypatch.chdir(directory)
    rows = [{"prompt": [{"role": "user", "content": "2 + 2?"}], "charter": text} for text in TEXTS]
    (directory / "data").mkdir()
    (directory / "data" / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = importlib.util.spec_from_file_location("charter_taskset", directory / "charter_taskset.py")
    taskset = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(taskset)
    assert taskset.__all__ == ["CharterTaskset"]
    tasks = taskset.CharterTaskset(SimpleNamespace(task=None)).load()
    traces = [SimpleNamespace(last_reply=answer, num_output_tokens=2) for answer in ANSWERS]
    return [asyncio.run(task.total(trace)) for task, trace in zip(tasks, traces, strict=True)]


class AnyNames(ModuleType):
    """A module that has an empty class of every name."""

    def __getattr__(self, name):
        return type(name, (), {})


def by_skyrl(module, monkeypatch):
    """Environment and generator, over the few names of SkyRL that they take (tried with skyrl 0.3.0 itself)."""
    path = Path(module.__file__).with_name("run_skyrl.py")
    imported = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    for name in ("ray", "skyrl_gym", *imported):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = ".".join(parts[:end])
            monkeypatch.setitem(sys.modules, place, AnyNames(place))
    sys.modules["ray"].remote = lambda **_: lambda function: function
    sys.modules["skyrl_gym.envs.base_text_env"].BaseTextEnvStepOutput = dict
    spec = importlib.util.spec_from_file_location("run_skyrl", path)
    entry = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(entry)
    totals = []
    for answer, text in zip(ANSWERS, TEXTS, strict=True):
        extras = {"charter": text}
        stepped = entry.Environment(env_config={}, extras=extras).step(answer)
        assert (stepped["done"], stepped["reward"], stepped["observations"]) == (True, 0.0, [])
        output = SimpleNamespace(response_ids=[1, 2])
        assert entry.Generator._post_process_agent_loop_output(None, output, extras, None) is output
        first, last = output.reward
        assert first == 0.0
        totals.append(last)
    return totals


CALLS = {
    "trl": by_trl, "verl": by_verl, "openrlhf": by_openrlhf, "nemo_rl": by_nemo_rl, "prime_rl": by_prime_rl,
    "skyrl": by_skyrl,
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_ten_answers_get_the_numbers_of_charter(engine, tmp_path, monkeypatch):
    module = loaded(rendered(engine, *FUNCTIONS), tmp_path, monkeypatch)
    assert CALLS[engine](module, monkeypatch) == pytest.approx(TOTALS, abs=1e-12)
    assert len(set(TOTALS)) > 4
    assert not (tmp_path / "scores").exists(), "beside an export nobody reads them"


@pytest.mark.parametrize("engine", ["verl", "openrlhf", "nemo_rl", "prime_rl", "skyrl"])
@pytest.mark.parametrize("weight", [0.1, -2.3, 1000 / 3, 1e-7])
def test_means_of_equal_scores_are_exact_in_32_bits(engine, weight, tmp_path, monkeypatch):
    """Engines subtract a group's mean: of 0.1, eight times, it had been off by an ulp, which OpenRLHF took for 0.9."""
    run = rendered(engine, replace(FUNCTIONS[0], weight=weight))
    total, _ = loaded(run, tmp_path, monkeypatch).rewards_of("4", TEXTS[0])
    assert total == pytest.approx(weight, rel=4e-6)
    sums = [count * total for count in range(1, 65)]
    assert [*struct.unpack("64f", struct.pack("64f", *sums))] == sums


@pytest.mark.parametrize("engine", ENGINES)
def test_file_needs_the_standard_library_alone(engine):
    tree = ast.parse(rendered(engine, *FUNCTIONS).files["rewards.py"])
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    beside = {"math_verify"}  # of `charter:expression`, when it is called
    beside |= {"transformers"} if engine == "openrlhf" else set()
    assert {name.partition(".")[0] for name in names} - beside <= sys.stdlib_module_names


@pytest.mark.parametrize("engine", ENGINES)
def test_failing_function_is_raised_and_never_a_reward(engine, tmp_path, monkeypatch):
    module = loaded(rendered(engine, FUNCTIONS[0]), tmp_path, monkeypatch)
    with pytest.raises(ValueError, match="holds no number"):
        module.rewards_of("4", row_text(TURNS, {"answer": "none"}, 0))
    total, each = module.rewards_of("4", row_text(TURNS, {}, 0))
    assert total == 0.0
    assert math.isnan(each["right"])


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_writes_what_it_has_scored(engine, tmp_path, monkeypatch):
    module = loaded(rendered(engine, *FUNCTIONS), tmp_path, monkeypatch)
    (tmp_path / "scores").mkdir()
    CALLS[engine](module, monkeypatch)
    [file] = (tmp_path / "scores").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    each = [module.rewards_of(answer, text)[1] for answer, text in zip(ANSWERS, TEXTS, strict=True)]
    wanted = [{name: None if math.isnan(value) else value for name, value in item.items()} for item in each]
    assert [line["rewards"] for line in lines] == wanted
    assert [line["place"] for line in lines] == [ROWS.index(row) for row in ROWS]
    assert len({line["place"] for line in lines}) == 3
    assert all(seconds > 0 for line in lines for seconds in line["seconds"].values())


def test_a_reward_that_fails_is_missing_in_the_scores(tmp_path, monkeypatch):
    module = loaded(rendered("prime_rl", FUNCTIONS[1], FUNCTIONS[0]), tmp_path, monkeypatch)
    (tmp_path / "scores").mkdir()
    with pytest.raises(ValueError, match="holds no number"):
        module.rewards_of("4", row_text(TURNS, {"answer": "none"}, 0))
    [file] = (tmp_path / "scores").iterdir()
    assert json.loads(file.read_text())["rewards"] == {"form": 0.0}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_stop_is_rendered_where_charter_watches(engine):
    stage = stage_of(engine, FUNCTIONS[0], on_overoptimisation="stop")
    with pytest.raises(SpecError, match="compares the rewards with the gold, and an export has none"):
        render(replace(handover(stage, layout_of(stage)), sources={"own/bonus.py": OWN}))
    mapped = rendered(engine, FUNCTIONS[0], on_overoptimisation="stop").mapping
    [note] = [item for item in mapped if item.field == "stage.on_overoptimisation"]
    assert "after every rollout" in note.note


def test_a_model_of_the_engine_leaves_nothing_to_watch():
    model = Reward(name="pm", kind="preference_model", model="pm")
    mapped = rendered("trl", FUNCTIONS[0], model).mapping
    [note] = [item for item in mapped if item.field == "stage.on_overoptimisation"]
    assert "a preference model is the engine's own" in note.note


def test_each_engine_is_told_where_the_file_is():
    trl = yaml.safe_load(rendered("trl", *FUNCTIONS).files["grpo.yaml"])
    assert trl["reward_funcs"] == ["rewards.reward_0", "rewards.reward_1", "rewards.reward_2"]
    assert trl["reward_weights"] == [2.0, 0.25, -1.0]
    assert "reward_model_name_or_path" not in trl
    verl = yaml.safe_load(rendered("verl", *FUNCTIONS).files["ppo.yaml"])
    assert verl["reward"]["custom_reward_function"] == {"path": "./rewards.py", "name": "compute_score"}
    assert verl["reward"]["reward_model"]["enable"] is False
    words = rendered("openrlhf", *FUNCTIONS).command
    assert words[words.index("--reward.remote_url") + 1] == "./rewards.py"
    assert words[words.index("--data.label_key") + 1] == "charter"
    assert "--reward.model_name_or_path" not in words
    nemo = rendered("nemo_rl", *FUNCTIONS)
    assert nemo.command[:2] == ("python", "./run_grpo.py")
    assert yaml.safe_load(nemo.files["grpo.yaml"])["data"]["default"]["env_name"] == "charter"
    assert 'register_env("charter", NAME)' in nemo.files["run_grpo.py"]
    prime = rendered("prime_rl", *FUNCTIONS)
    [source] = yaml.safe_load(prime.files["rl.yaml"])["orchestrator"]["train"]["source"]
    assert source["env"]["taskset"] == {"id": "charter_taskset"}
    skyrl = rendered("skyrl", *FUNCTIONS)
    assert yaml.safe_load(skyrl.files["skyrl.yaml"])["environment"] == {"env_class": "charter"}
    assert 'skyrl_gym.register(id="charter", entry_point=Environment)' in skyrl.files["run_skyrl.py"]


def test_penalty_of_long_answers_is_the_engines_own():
    rewards = (FUNCTIONS[0], replace(PENALTY, weight=0.5))
    assert yaml.safe_load(rendered("trl", *rewards).files["grpo.yaml"])["reward_weights"] == [2.0, 0.5]
    verl = yaml.safe_load(rendered("verl", *rewards).files["ppo.yaml"])["reward"]
    assert verl["reward_manager"]["name"] == "dapo"
    buffer = {"enable": True, "len": 128, "log": False, "penalty_factor": 0.5}
    assert verl["reward_kwargs"] == {"max_resp_len": 512, "overlong_buffer_cfg": buffer}
    words = rendered("openrlhf", *rewards).command
    assert words[words.index("--reward.overlong_buffer_len") + 1] == "128"
    assert words[words.index("--reward.overlong_penalty_factor") + 1] == "0.5"
    shaping = yaml.safe_load(rendered("nemo_rl", *rewards).files["grpo.yaml"])["grpo"]["reward_shaping"]
    assert shaping["overlong_buffer_penalty"] == 0.5
    for engine in ("verl", "openrlhf", "nemo_rl"):
        assert (
            "short" not in rendered(engine, *rewards).files["rewards.py"].partition("REWARDS = ")[2].partition("}")[0]
        )
        assert "longest is not max_new_tokens" in refusal(engine, *rewards, max_new_tokens=256)["rewards"]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_called_is_refused_by_its_name(engine):
    judge = Reward(name="kind", kind="judge", model="judge", rubric=Rubric(ask="pairwise"))
    said = refusal(engine, FUNCTIONS[0], judge, replace(judge, name="short", weight=0.0))["rewards"]
    assert "kind, short: ask: pairwise compares the answers of a group" in said
    assert said.count("for one answer at a time") == 1
    asks = Reward(name="odd", kind="function", call="own/bonus.py:unknown")
    assert "odd: it asks for seed" in refusal(engine, asks)["rewards"]
    absent = Reward(name="gone", kind="function", call="own/bonus.py:absent")
    assert "gone: own/bonus.py:absent cannot be read" in refusal(engine, absent)["rewards"]
    tools = Environment(tools={"calc": "charter:calculator"})
    assert "turns with charter:calculator" in refusal(engine, FUNCTIONS[0], environment=tools)["environment"]
    taskset = Environment(call="verifiers:game", role="user")
    said = refusal(engine, FUNCTIONS[0], environment=taskset)
    if engine == "prime_rl":
        assert "one reward of kind env" in said["rewards"]
    else:
        assert "play an environment of verifiers" in said["environment"]
    model = Reward(name="pm", kind="preference_model", model="pm")
    said = refusal(engine, FUNCTIONS[0], model, on_overoptimisation="stop")
    assert "a preference model is the engine's own" in said["on_overoptimisation"]
    assert ("not by both" in said.get("rewards", "")) is (engine != "trl")


LISTS = {
    "functions": ((FUNCTIONS[0], FUNCTIONS[1]), {}),
    "the engine's penalty": ((FUNCTIONS[0], PENALTY), {}),
    "another length": ((FUNCTIONS[0], PENALTY), {"max_new_tokens": 256}),
    "a judge": ((FUNCTIONS[0], Reward(name="kind", kind="judge", model="judge", rubric=Rubric())), {}),
    "a judge alone": ((JUDGE,), {}),
    "a judge of pairs": ((replace(JUDGE, rubric=Rubric(ask="pairwise")),), {}),
    "a model too": ((FUNCTIONS[0], Reward(name="pm", kind="preference_model", model="pm")), {}),
    "the penalty alone": ((PENALTY,), {}),
    "tools": ((FUNCTIONS[0],), {"environment": Environment(tools={"calc": "charter:calculator"})}),
    "a mixture": (FUNCTIONS[:2], {"mixture": "normalise_then_sum"}),
    "other groups": ((FUNCTIONS[0],), {"equal_groups": "refill"}),
    "a stop": ((FUNCTIONS[0],), {"on_overoptimisation": "stop"}),
}


@pytest.mark.parametrize("given", LISTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_is_refused_as_its_export_is(engine, given):
    """A project is read if its stage is rendered; else both name the same fields for the same reasons."""
    rewards, changes = LISTS[given]
    read = engine_problems(Project(name="p", models={}, pipeline={"s": stage_of(engine, *rewards, **changes)}))
    reasons = {problem.path.rpartition(".")[2]: problem.message.partition(": ")[2] for problem in read}
    if not reasons:
        assert "rewards.py" in rendered(engine, *rewards, **changes).files
        return
    told = refusal(engine, *rewards, **changes)
    assert {name: told[name].rpartition(reason)[1] for name, reason in reasons.items()} == reasons
    assert reasons.keys() == told.keys()


def test_an_engine_without_a_caller_takes_no_list():
    stage = replace(stage_of("verl", FUNCTIONS[0]), engine="fsdp")
    (problem,) = engine_problems(Project(name="p", models={}, pipeline={"s": stage}))
    assert (problem.path, problem.message) == (
        "pipeline.s.rewards",
        "fsdp cannot express it: fsdp calls no list of rewards",
    )
    assert not list(engine_problems(Project(name="p", models={}, pipeline={"s": replace(stage, engine="native")})))


def test_trl_adds_a_preference_model_and_normalises_each():
    model = Reward(name="pm", kind="preference_model", model="pm", weight=0.3)
    run = rendered("trl", FUNCTIONS[0], model, mixture="normalise_then_sum")
    settings = yaml.safe_load(run.files["grpo.yaml"])
    assert settings["reward_weights"] == [0.3, 2.0]
    assert settings["reward_model_name_or_path"] == "inputs/pm"
    assert settings["multi_objective_aggregation"] == "normalize_then_sum"
    assert "mixture" in refusal("verl", FUNCTIONS[0], FUNCTIONS[1], mixture="normalise_then_sum")


@pytest.mark.parametrize(
    "adapter",
    [HuggingFaceAdapter(), VerlAdapter(), OpenRlhfAdapter(), NemoRlAdapter(), PrimeRlAdapter(), SkyRlAdapter()],
    ids=ENGINES,
)
def test_row_carries_what_rewards_read(adapter):
    carries = json.dumps(adapter.prompt_row(TURNS, kind="ppo", index=0, carried=TEXTS[0]))
    assert json.dumps(TEXTS[0]) in carries
    assert "turns" not in json.dumps(adapter.prompt_row(TURNS, kind="ppo", index=0))


JUDGED = (replace(JUDGE, name="right", weight=2.0), *FUNCTIONS[1:])
"""The same names and weights, but the first is a judge's."""


@pytest.fixture
def judges(tmp_path):
    """Write where the judges are asked, as a stage that runs does: a rating is a tenth of the answer's length."""
    questions, replies = [], {}

    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            questions.append((self.headers["Authorization"], question))
            status, reply = replies.get(question["answer"], (200, {"rating": len(question["answer"]) / 10}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, format, *values):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        (tmp_path / "key").write_text("secret")
        address = {"url": f"http://127.0.0.1:{server.server_address[1]}/", "key": str(tmp_path / "key")}
        (tmp_path / "judges.json").write_text(json.dumps(address))
        yield questions, replies
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_judge_is_asked_by_every_engine(engine, tmp_path, monkeypatch, judges):
    module = loaded(rendered(engine, *JUDGED), tmp_path, monkeypatch)
    rest = rendered(engine, *FUNCTIONS[1:])
    (tmp_path / "rest").mkdir()
    functions = loaded(rest, tmp_path / "rest", monkeypatch, "rewards")
    monkeypatch.setitem(sys.modules, "rewards", module)
    totals = [
        2 * len(answer) / 10 + functions.rewards_of(answer, text)[0]
        for answer, text in zip(ANSWERS, TEXTS, strict=True)
    ]
    assert CALLS[engine](module, monkeypatch) == pytest.approx(totals, rel=4e-6)
    questions, _ = judges
    assert {key for key, _ in questions} == {"Bearer secret"}
    turns = [{"role": "user", "content": "2 + 2?"}]
    expected = [
        {"reward": "right", "answer": answer, "turns": turns, "row": row}
        for answer, row in zip(ANSWERS, ROWS, strict=True)
    ]
    assert sorted((item for _, item in questions), key=str) == sorted(expected, key=str), "each is sent once"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((503, "the budget is spent"), 'gave no rating: "the budget is spent"'),
        ((422, "no log-probabilities"), "gave no rating"),
        ((200, {"rating": math.nan}), "not a finite number"),
        ((200, {"rating": "9"}), "not a finite number"),
        ((200, {}), "rating"),
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_answer_without_a_rating_is_an_error(engine, reply, words, tmp_path, monkeypatch, judges):
    judges[1]["four"] = reply
    module = loaded(rendered(engine, *JUDGED), tmp_path, monkeypatch)
    with pytest.raises((RuntimeError, ValueError, KeyError), match=words):
        CALLS[engine](module, monkeypatch)


def test_a_judge_that_fits_no_row_gives_nothing(tmp_path, monkeypatch, judges):
    judges[1]["4"] = 200, {"rating": None}
    module = loaded(rendered("verl", JUDGE), tmp_path, monkeypatch)
    assert module.rewards_of("4", TEXTS[0])[0] == 0.0
    assert math.isnan(module.rewards_of("4", TEXTS[0])[1]["kind"])


def test_nobody_asks_a_judge_beside_an_export(tmp_path, monkeypatch):
    stage = stage_of("verl", JUDGE)
    with pytest.raises(SpecError, match="an export has none"):
        render(handover(stage, layout_of(stage)))
    module = loaded(rendered("verl", JUDGE), tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="start this stage by `charter run`"):
        module.rewards_of("4", TEXTS[0])
