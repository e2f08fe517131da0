"""Rewards that another engine gives, as Charter reads them beside it: metrics, and the alarm of a native stage."""

import json
import random
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path

import faked
import pytest

torch = pytest.importorskip("torch")

from fault_server import fault_server
from test_faults import lines_of, states
from test_judges import bill_of, stage_of

import charter.hosted.run as hosted
from charter.artifacts.job import write_job
from charter.artifacts.stage_dir import StageDir
from charter.engines import render
from charter.errors import StageError
from charter.hosted.scores import WATCHED, RolloutScores, ScoreFiles, watched_sums
from charter.spec.rewards import Reward, Rubric
from charter.tracking.overoptimisation import OVEROPTIMISATION, rollout_means
from charter.train import ppo
from plain_stages import accepted_stage

pytestmark = pytest.mark.torch
TRAINER = Path(__file__).with_name("scoring_trainer.py")
PROXY = Reward(name="proxy", kind="function", call="charter:regex", arguments={"pattern": ".*boast.*"}, weight=2.0)
GOLD = Reward(name="gold", kind="function", call="charter:regex", arguments={"pattern": ".*modest.*"}, weight=0.0)
CLOCK = count()
PARTING = "the reward rises and the gold falls: since rollout 1 the gold fell by 1 "


def spec_of(*rewards, **changes):
    settings = {"estimator": "grpo", "samples_per_prompt": 2, "reward": None, "rollout_batch": 8, "minibatch": 8}
    return accepted_stage("trl", "ppo", **{**settings, "episodes": 800, **changes}, rewards=rewards or (PROXY, GOLD))


def scores_of(path, first_step=0, spent=dict, **changes):
    (path / "scores").mkdir(exist_ok=True)
    spec = spec_of(**{"gold": "gold", **changes})
    return RolloutScores(spec, path, ScoreFiles(path / "scores", 2), ("proxy", "gold"), first_step, spent)


def line(place, proxy, gold, seconds=0.5):
    each = {name: value for name, value in (("proxy", proxy), ("gold", gold)) if value != "failed"}
    took = dict.fromkeys(each, seconds)
    return json.dumps({"place": place, "at": next(CLOCK), "rewards": each, "seconds": took}) + "\n"


def append(path, process, lines):
    with (path / "scores" / f"{process}.jsonl").open("a") as file:
        file.write("".join(lines))


def recorded(path, rollouts, *, draws, gold=lambda n: 0.6, first=1):
    """What two processes of an engine write: every group of two answers is shared between them."""
    for number in rollouts:
        for group in range(4):
            for process in range(2):
                values = draws.gauss(number / 20, 0.05), draws.gauss(gold(number), 0.05)
                append(path, process, [line(f"{number}.{group}", *values)])


def test_groups_of_two_processes_are_put_together(tmp_path):
    files = ScoreFiles(tmp_path / "scores", 2)
    (tmp_path / "scores").mkdir()
    append(tmp_path, "a", [line("x", 1.0, 0.0), line("y", 2.0, 0.0)])
    assert list(files.groups()) == []
    half = line("x", 3.0, None)
    append(tmp_path, "b", [half[:9]])
    assert list(files.groups()) == []
    append(tmp_path, "b", [half[9:], line("x", 4.0, 0.0), line("x", 5.0, 0.0)])
    read = [[item["rewards"]["proxy"] for item in group] for group in files.groups()]
    assert read == [[1.0, 3.0], [4.0, 5.0]], "a file that is read once more begins another group"


def test_what_is_dropped_stays_apart_from_the_next_epoch(tmp_path, inputs, monkeypatch):
    """An engine asks for one of two answers and drops the group; later it draws the same prompt again."""

    def drop_and_draw_again(work):
        rows = (work / "data" / "prompts.jsonl").read_text().splitlines()
        texts = [json.loads(row)["charter"] for row in rows]
        prompts = [json.dumps({**json.loads(text), "place": 0}) for text in texts]
        again = next(number for number, prompt in enumerate(prompts) if prompt in prompts[:number])
        for path in (work / "scores").iterdir():
            path.unlink()
        spec = spec_from_file_location("rewards_of_stage", work / "rewards.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        module.rewards_of("boast", texts[prompts.index(prompts[again])])
        for answer in ("modest", "modest too"):
            module.rewards_of(answer, texts[again])
        groups = list(ScoreFiles(work / "scores", 2).groups())
        assert [[line["rewards"]["proxy"] for line in group] for group in groups] == [[0.0, 0.0]]
        seen.append(work)

    seen = []
    monkeypatch.setattr(hosted, "discard", drop_and_draw_again)
    run(watched(tmp_path / "s", inputs, "warn"), monkeypatch)
    assert seen


def test_rollouts_that_wait_are_not_mixed(tmp_path):
    """Each of two processes scores groups of its own; nobody reads while a checkpoint is taken over."""
    scores = scores_of(tmp_path)
    for number in (1, 2, 3):
        for process in range(2):
            rows = [f"{number}.{process}.{group}" for group in range(2)]
            append(tmp_path, process, [line(row, float(number), 1.0) for row in rows for _ in range(2)])
    scores.read()
    assert [scores.metrics(range(n, n + 1))["reward_proxy_mean"] for n in (1, 2, 3)] == [1.0, 2.0, 3.0]


def test_means_are_those_of_a_native_stage(tmp_path):
    draws = random.Random(1)
    groups = [[{"proxy": draws.random(), "gold": draws.choice([None, 0.5, 2.0])} for _ in range(4)] for _ in range(6)]
    reward_BK = torch.tensor(
        [[answer["proxy"], float("nan") if answer["gold"] is None else answer["gold"]] for group in groups
         for answer in group], dtype=torch.float64,
    )  # fmt: skip

    class Rollout:
        score_B = reward_BK[:, 0] * 2.0

        def sound_B(self, weights, *, samples):
            return torch.ones(24).bool()

    Rollout.reward_BK = reward_BK
    native = ppo._watched_sums(Rollout(), (PROXY, GOLD), "gold", 4)
    ours = watched_sums(groups, {"proxy": 2.0, "gold": 0.0}, "gold")
    assert ours == pytest.approx(native, rel=1e-12)
    assert rollout_means(ours).gold_deviation > 0


def test_recorded_rollouts_whose_gold_falls_raise_the_alarm(tmp_path):
    scores = scores_of(tmp_path, on_overoptimisation="stop")
    recorded(tmp_path, range(1, 10), draws=random.Random(2))
    scores.read()
    assert len(scores.watch.points) == 9
    assert scores.reason_to_stop(9) == ""
    recorded(tmp_path, range(10, 20), draws=random.Random(3), gold=lambda n: 0.6 - 0.1 * (n - 9))
    scores.read()
    with pytest.raises(StageError, match=r"the reward rises and the gold falls: since rollout \d+ the gold fell"):
        scores.check(19)
    note = json.loads((tmp_path / OVEROPTIMISATION).read_text())
    assert note["gold"] == "gold"
    assert 9 < note["at"] <= 19
    warning = scores_of(tmp_path, first_step=19)
    assert warning.watch.alarm == scores.watch.alarm
    warning.check(19)
    assert (tmp_path / OVEROPTIMISATION).exists()
    assert scores_of(tmp_path, first_step=9).watch.alarm is None, "rollouts after the checkpoint are forgotten"
    assert not (tmp_path / OVEROPTIMISATION).exists(), "and the alarm with them"


def test_figures_are_those_of_the_rollouts_of_the_steps(tmp_path):
    spent = {"gold/seconds": 0.0, "gold/usd": 0.0}
    scores = scores_of(tmp_path, spent=lambda: dict(spent), gold=None)
    for number in (1, 2):
        spent.update({"gold/seconds": 3.0 * number, "gold/usd": 0.25 * number})
        proxy = [line(f"{number}.{group}", float(number), "failed" if group else None) for group in range(4)] * 2
        append(tmp_path, "a", proxy)
        scores.read()
    assert scores.metrics(range(1, 1)) == {}
    figures = scores.metrics(range(1, 3))
    wanted = {
        "proxy_mean": 1.5, "proxy_deviation": 0.5, "proxy_not_applicable": 0.0, "proxy_failed": 0.0,
        "proxy_seconds": 4.0, "proxy_usd": 0.0, "gold_mean": 0.0, "gold_deviation": 0.0,
        "gold_not_applicable": 0.25, "gold_failed": 0.75, "gold_seconds": 3.0, "gold_usd": 0.25,
    }  # fmt: skip
    assert figures == {f"reward_{name}": pytest.approx(value) for name, value in wanted.items()}
    assert scores.metrics(range(1, 3)) == {}


def test_a_watch_that_sees_nothing_ends_the_stage(tmp_path):
    scores = scores_of(tmp_path, first_step=2, on_overoptimisation="stop")
    scores.check(5)
    with pytest.raises(StageError, match="nothing watches the rewards: the engine is at step 6"):
        scores.check(6)
    scores_of(tmp_path, first_step=2).check(6)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_model_that_the_engine_asks_leaves_nothing_to_watch(tmp_path, weight):
    """Its score is in no file: it may be the gold itself, or what is learnt from beside the functions."""
    name = "gold" if not weight else "score"
    model = Reward(name=name, kind="preference_model", model="pm", weight=weight)
    rewards = (PROXY, model) if not weight else (PROXY, GOLD, model)
    spec = spec_of(*rewards, gold="gold")
    (tmp_path / "scores").mkdir()
    names = ("proxy",) if not weight else ("proxy", "gold")
    scores = RolloutScores(spec, tmp_path, ScoreFiles(tmp_path / "scores", 2), names, 0, dict)
    each = {"proxy": 1.0} if not weight else {"proxy": 1.0, "gold": 0.5}
    rows = [json.dumps({"place": f"{n % 4}", "at": n, "rewards": each, "seconds": {}}) + "\n" for n in range(8)]
    append(tmp_path, "a", rows)
    scores.read()
    figures = scores.metrics(range(1, 2))
    assert figures["reward_proxy_mean"] == 1.0
    assert "overoptimised" not in figures
    assert not (tmp_path / WATCHED).exists()


def watched(path, inputs, on):
    """The stage of `test_judges`, without its judge."""
    stage = stage_of(path, inputs, "", rewards=(PROXY, GOLD), gold="gold", on_overoptimisation=on)
    job = stage.job
    write_job(path, replace(job, serving={}, inputs={role: job.inputs[role] for role in ("policy", "prompts")}))
    return StageDir(path)


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    """TRL's place is taken by a trainer whose answers come to boast."""
    monkeypatch.setattr(faked, "TRAINER", TRAINER)
    monkeypatch.setattr(
        hosted, "render", lambda handover: replace(faked.render(handover), files=render(handover).files)
    )


def run(stage, monkeypatch, fault="none"):
    monkeypatch.setenv(faked.FAULT, fault)
    hosted.run(stage)


def test_an_engine_that_exploits_its_reward_is_stopped(tmp_path, inputs, monkeypatch):
    monkeypatch.setenv("GATE", str(tmp_path / "never"))
    for _ in range(2):
        with pytest.raises(StageError, match=PARTING):
            run(watched(tmp_path / "s", inputs, "stop"), monkeypatch, "gate:5")
    stage = watched(tmp_path / "s", inputs, "warn")
    assert states(stage)[0] == "2"
    assert not stage.is_done
    assert json.loads((stage.path / OVEROPTIMISATION).read_text())["gold"] == "gold"
    run(stage, monkeypatch)
    assert stage.is_done
    assert lines_of(stage)[-1]["overoptimised"] == 1.0


def test_a_warned_engine_goes_on_and_its_metrics_say_so(tmp_path, inputs, monkeypatch, capfd):
    stage = watched(tmp_path / "s", inputs, "warn")
    run(stage, monkeypatch)
    lines = lines_of(stage)
    assert [line["overoptimised"] for line in lines] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [line["reward_proxy_mean"] for line in lines] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [line["reward_gold_mean"] for line in lines] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert f"warning: {PARTING}" in capfd.readouterr().out
    assert len(json.loads((stage.path / WATCHED).read_text())["rollouts"]) == 6


def test_an_engine_that_writes_no_scores_is_not_trusted(tmp_path, inputs, monkeypatch):
    monkeypatch.setenv("SILENT", "1")
    with pytest.raises(StageError, match="nothing watches the rewards"):
        run(watched(tmp_path / "s", inputs, "stop"), monkeypatch)


def test_a_judge_costs_in_the_metrics_what_is_on_its_bill(tmp_path, inputs, monkeypatch):
    good = Reward(name="good", kind="judge", model="j")
    with fault_server() as (url, _):
        stage = stage_of(tmp_path / "s", inputs, url, rewards=(good, PROXY))
        run(stage, monkeypatch)
        twice = stage_of(tmp_path / "twice", inputs, url, rewards=(good, replace(good, name="again"), PROXY))
        run(twice, monkeypatch)
    lines = lines_of(stage)
    assert len(lines) == 6
    assert sum(line["reward_good_usd"] for line in lines) == pytest.approx(bill_of(stage).settled_micro_usd / 1e6)
    assert sum(line["reward_good_seconds"] for line in lines) > 0
    assert all(line["reward_proxy_usd"] == 0.0 for line in lines)
    assert all(-1 < line["reward_good_mean"] < 1 for line in lines)
    both = lines_of(twice)
    assert all("reward_good_seconds" in line and "reward_again_mean" in line for line in both)
    assert not any("reward_good_usd" in line for line in both), "two rewards of one judge have one bill"


def test_judges_of_one_served_name_have_a_bill_each(tmp_path, inputs, monkeypatch):
    """A server knows both as one model; the second asks two questions of every answer."""
    good = Reward(name="good", kind="judge", model="j")
    principles = Reward(name="principles", kind="judge", model="k", rubric=Rubric())
    bills = {}
    with fault_server() as (url, _):
        for rewards in ((good,), (principles,), (good, principles)):
            stage = stage_of(tmp_path / str(len(bills)), inputs, url, rewards=(*rewards, PROXY))
            job = stage.job
            [judge], serving = job.inputs["judge"], replace(job.serving["j"], model="served")
            models = {item.model: replace(judge, name=item.model) for item in rewards}
            asked = {**job.inputs, "judge": tuple(models.values())}
            write_job(stage.path, replace(job, serving=dict.fromkeys(models, serving), inputs=asked))
            stage = StageDir(stage.path)
            run(stage, monkeypatch)
            names = tuple(item.name for item in rewards)
            bills[names] = {name: sum(line[f"reward_{name}_usd"] for line in lines_of(stage)) for name in names}
            assert sum(bills[names].values()) == pytest.approx(bill_of(stage).settled_micro_usd / 1e6)
    assert bills["good", "principles"] == pytest.approx({**bills[("good",)], **bills[("principles",)]})
