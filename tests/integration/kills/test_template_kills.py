"""SIGKILL of rlvr-tiny and tools-tiny: the same bits, and no reward or tool called twice unawares.

Both are the shipped templates, with fewer and smaller steps; their reward and their calculator write down every call,
outside of what Charter keeps. CI makes three kills, in the RL stage after an SFT. `make chaos` makes
CHARTER_CHAOS_KILLS: two thirds of them so, the others of supervisor or stage anywhere in `charter run` of all stages.
"""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from bench import KILLED, defects_in, hashes_of, measured, wait_then_kill
from layouts import THOROUGH

from charter.artifacts.job import JobInput, read_job, write_job
from charter.artifacts.lease import read_holder
from charter.spec.load import load_project
from charter.spec.rewards import ENVIRONMENT_SOURCES, REWARD_SOURCES

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KILLS = int(os.environ.get("CHARTER_CHAOS_KILLS", "60"))
CHARTER = [sys.executable, "-m", "charter.cli.main"]
MOST_IN_A_RUN = 5
STAGES = ("pretrain", "sft", "rl", "rl_control", "eval")
OWN = """
import os
from pathlib import Path

from charter.inference.environment import calculator


def noted(line):
    file = os.open(Path(__file__).with_name("calls.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\\n".encode())
    os.close(file)


def right(answer: str, truth: object, seed: int) -> float:
    noted(f"reward {seed}")
    written = answer.strip()
    return float(written == str(truth)) + sum(map(str.__eq__, written, str(truth))) / 10


def calc(expression: str) -> str:
    noted(f"tool {expression}")
    try:
        return calculator(expression)
    except Exception:
        return "none"
"""
SIZES = {
    "rlvr-tiny": {
        "steps: 400": "steps: 40",
        "epochs: 40": "steps: 60",
        "episodes: 25_600": "episodes: 192",
        "rollout_batch: 256": "rollout_batch: 32",
        "minibatch: 128": "minibatch: 16",
        "checkpoint_every: 20": "checkpoint_every: 2",
        "rollout_batch: 200": "rollout_batch: 100",
    },
    "tools-tiny": {
        "steps: 600": "steps: 100",
        "epochs: 20": "steps: 120",
        "episodes: 5_120": "episodes: 192",
        "rollout_batch: 128": "rollout_batch: 32",
        "minibatch: 64": "minibatch: 16",
        "checkpoint_every: 10": "checkpoint_every: 2",
        "charter:calculator": "seen.py:calc",
    },
}
KILLS_IN_CI = {"rlvr-tiny": 1, "tools-tiny": 2}


def small(template: str, project: Path) -> Path:
    """The template with fewer and smaller steps, and calls that are seen."""
    subprocess.run([*CHARTER, "init", "--template", template, str(project)], check=True, capture_output=True)
    file = project / "charter.yaml"
    text = file.read_text()
    for usual, fewer in SIZES[template].items():
        assert usual in text, usual
        text = text.replace(usual, fewer)
    file.write_text(text.replace("charter:exact", "seen.py:right"))
    (project / "seen.py").write_text(OWN)
    return project


def calls(project: Path) -> Counter:
    return Counter((project / "calls.log").read_text().splitlines())


def steps_of(stage: Path) -> list[dict]:
    """All that was measured, but for the clock and for the count of calls that were made again."""
    rows = measured(stage) if (stage / "metrics.jsonl").exists() else []
    return [{key: value for key, value in row.items() if key != "tool_repeats"} for row in rows]


def assert_known(once: Counter, project: Path, stages: list[Path]) -> None:
    """Every call beyond the undisturbed run's is one that a stage says it made again, and none is missing."""
    ratings = [json.loads(path.read_text()) for stage in stages for path in stage.glob("rewards/*.json")]
    lines = [line for stage in stages for path in stage.glob("turns/*.jsonl") for line in path.read_text().splitlines()]
    again = sum(bool(json.loads(line).get("reply", {}).get("repeated")) for line in lines)
    attempts, seen = sum(item["attempts"] - 1 for item in ratings), calls(project)
    more = seen - once
    assert set(seen) == set(once)
    assert sum(count for line, count in more.items() if line.startswith("tool ")) <= again
    assert sum(count for line, count in more.items() if line.startswith("reward ")) <= attempts * 33


@pytest.fixture(scope="module")
def started(bench, tmp_path_factory):
    """(template) -> a maker of its RL stages, whose policy is its architecture after its SFT."""
    from charter.models.chat import train_tokenizer
    from charter.models.language_model import new_language_model

    def make(template: str):
        project = small(template, tmp_path_factory.mktemp("templates") / template)
        spec, place = load_project(project / "charter.yaml"), bench.place / template
        rows = project / spec.data["demonstrations"].path
        texts = [turn["content"] for line in rows.read_text().splitlines() for turn in json.loads(line)["messages"]]
        architecture = spec.models["base"].architecture
        tokenizer = train_tokenizer(texts, vocab_size=architecture.vocab_size)
        new_language_model(architecture, tokenizer, seed=1).save(place / "model")

        def staged(kind: str, name: str, **inputs: tuple[JobInput, ...]) -> Path:
            stage = spec.pipeline["rl" if kind == "ppo" else kind]
            directory = bench.stage(kind, f"{template}-{name}", spec=replace(stage, checkpoint_epochs=False)
                                    if kind == "ppo" else stage)  # fmt: skip
            job = read_job(directory)
            write_job(directory, replace(job, inputs=inputs))
            return directory

        def read(role: str, path: Path, kind: str | None = None, name: str = "") -> tuple[JobInput, ...]:
            source = "data" if kind is None else "stage"
            where = str(path)
            return (
                JobInput(
                    name=name or role, role=role, source=source, path=where, fingerprint="0" * 64, stage_kind=kind
                ),
            )

        sft = staged("sft", "sft", init=read("init", place, "sft"), data=read("data", rows))
        assert bench.finish(sft) == 0, (sft / "log.txt").read_text()
        prompts, count = project / spec.data["problems"].path, iter(range(1000))

        def rl() -> tuple[Path, Path]:
            own = project.with_name(f"{template}-{next(count)}")
            own.mkdir()
            shutil.copy(project / "seen.py", own)
            sources = {
                role: read(role, own / "seen.py", name=f"{role} seen.py")
                for role in spec.pipeline["rl"].sources
                if role in (REWARD_SOURCES, ENVIRONMENT_SOURCES)
            }
            policy = read("policy", sft / "outputs", "sft")
            return staged("ppo", own.name, policy=policy, prompts=read("prompts", prompts), **sources), own

        return rl

    return make


@pytest.mark.parametrize("template", list(SIZES))
def test_the_rl_of_a_template_survives_kills(bench, started, template):
    rl = started(template)
    calm, own = rl()
    assert bench.finish(calm) == 0, (calm / "log.txt").read_text()
    expected, once = (hashes_of(calm), steps_of(calm)), calls(own)
    assert any(line.startswith("tool ") for line in once) == (template == "tools-tiny")
    assert any(row["gradient_norm"] > 0 for row in expected[1]), "answers to one prompt differ in what they get"
    draws, kills = random.Random(template), 0
    wanted = math.ceil(KILLS / 3) if THOROUGH else KILLS_IN_CI[template]
    while kills < wanted:
        directory, own = rl()
        for _ in range(min(MOST_IN_A_RUN, wanted - kills)):
            if not wait_then_kill(bench.start(directory), draws.uniform(0.3, 2.5), draws):
                break
            kills += 1
        assert bench.finish(directory) in (0, KILLED), (directory / "log.txt").read_text()
        assert (hashes_of(directory), steps_of(directory)) == expected
        assert defects_in(directory) == []
        assert_known(once, own, [directory])


def run(project: Path) -> subprocess.Popen:
    command = [*CHARTER, "run", "-C", str(project), "--yes"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen) -> int:
    told = process.communicate()[0]
    assert process.returncode in (0, -signal.SIGKILL, 5), told
    return process.returncode


def stages_of(project: Path) -> dict[str, Path]:
    found = {path.name.rpartition("-")[0]: path for path in (project / "run" / "stages").iterdir()}
    assert sorted(found) == sorted(STAGES)
    return found


def results(project: Path) -> dict[str, object]:
    return {name: (hashes_of(stage), steps_of(stage)) for name, stage in stages_of(project).items()}


def kill_somebody(project: Path, supervisor: subprocess.Popen, draws: random.Random) -> None:
    holders = [read_holder(lease) for lease in (project / "run" / "stages").glob("*/lease.json")]
    stages = [holder.pid for holder in holders if holder is not None and holder.is_alive]
    with contextlib.suppress(ProcessLookupError):
        os.kill(draws.choice(stages) if stages and draws.random() < 0.5 else supervisor.pid, signal.SIGKILL)


@pytest.mark.skipif(not THOROUGH, reason="whole pipelines are killed by `make chaos`")
@pytest.mark.parametrize("template", list(SIZES))
def test_a_whole_template_survives_kills(tmp_path, template):
    start = small(template, tmp_path / "start")
    calm = shutil.copytree(start, tmp_path / "calm")
    began = time.monotonic()
    assert ended(run(calm)) == 0
    seconds, expected, once = time.monotonic() - began, results(calm), calls(calm)
    draws, kills = random.Random(f"all of {template}"), 0
    wanted = math.ceil(KILLS / 6)
    while kills < wanted:
        project = shutil.copytree(start, tmp_path / f"killed-{kills}")
        most = min(MOST_IN_A_RUN, wanted - kills)
        while True:
            process = run(project)
            if most:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=seconds * draws.uniform(0.1, 0.6))
                if process.poll() is None:
                    kill_somebody(project, process, draws)
                    kills, most = kills + 1, most - 1
            if ended(process) == 0:
                break
        assert results(project) == expected
        assert_known(once, project, list(stages_of(project).values()))
