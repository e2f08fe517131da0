"""TRL's SFT, reward model and DPO on the data of cai-smoke as stages of Charter, killed as a test asks."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
CHARTER = (sys.executable, "-m", "charter.cli.main")
KILLED = -signal.SIGKILL
MARK = "CHARTER_HOSTED_STAGE"
HOLD = Path(__file__).resolve().parent / "trainer_hold"
"""On the path of TRL's interpreter: lets a test hold a stage before a step."""
HANG_SECONDS = 900.0
"""A run takes a minute or two; who waits longer than this waits in vain."""
PROJECT = """\
name: trl-smoke
models:
  base:
    precision: fp32
    architecture: {{hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 176, vocab_size: 512,
                   max_position_embeddings: 512, tied_embeddings: true}}
    tokenizer: {{train_on: [lm_texts], vocab_size: 512}}
data:
  lm_texts: {{path: preference_train.jsonl, column: both, limit: 200}}
  demos_a:  {{path: preference_train.jsonl, part: 1/2, column: chosen, limit: 96}}
  pairs_a:  {{path: preference_train.jsonl, part: 1/2, limit: 64}}
  pairs_b:  {{path: preference_train.jsonl, part: 2/2, limit: 32}}
pipeline:
  sft: {{kind: sft, engine: trl, init: base, data: [demos_a], steps: {steps}, global_batch: 8, seq_len: 128,
        learning_rate: 1e-3, dtype: fp32, checkpoint_every: {every}{more}}}
  pm:  {{kind: preference_model, engine: trl, init: sft, data: [pairs_a], steps: {steps}, global_batch: 8, seq_len: 128,
        learning_rate: 3e-4, context: last_turn, dtype: fp32, checkpoint_every: {every}{more}}}
  dpo: {{kind: dpo, engine: trl, init: sft, data: [pairs_b], steps: {steps}, global_batch: 8, seq_len: 256,
        learning_rate: 3e-4, dtype: fp32, checkpoint_every: {every}{more}}}
seed: 7
resources: {{infra: local, cpus: 1, max_parallel_stages: 1, price: 3.6}}
storage: {{keep_last: 2}}
engines: {{trl: {{python: {python}}}}}
"""
KILLS = MappingProxyType({"sft": "supervisor", "pm": "everything", "dpo": "engine"})


def environment(**extra: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **extra,
    }


def charter(root: Path, *words: str, timeout_seconds: float = 2 * HANG_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a command of Charter's in a project."""
    return subprocess.run(
        [*CHARTER, *words],
        cwd=root,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def answered(root: Path, *words: str) -> Any:
    """What a command answers with `--json`."""
    ended = charter(root, *words, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def write_project(root: Path, *, python: Path, steps: int = 20, every: int = 5, more: str = "") -> None:
    """The data of cai-smoke, and a file that names TRL for every stage; `more` are fields of each."""
    made = charter(root.parent, "init", "--template", "cai-smoke", str(root))
    assert made.returncode == 0, made.stderr
    interpreter = f"{python}, environment: {{PYTHONPATH: {HOLD}}}"
    (root / "charter.yaml").write_text(PROJECT.format(steps=steps, every=every, python=interpreter, more=more))


def hold(root: Path, stage: str, *, before_step: int) -> Path:
    """That step of a stage does not begin until `let_go`; the file that appears when the trainer stands before it.

    So the stage is still at work when it is killed or stopped, on however quick a machine.
    """
    (root / f"hold-{stage}").write_text(str(before_step))
    return root / f"held-{stage}"


def let_go(root: Path, stage: str) -> None:
    """Let a stage go on."""
    (root / f"hold-{stage}").unlink()


def stage_dir(root: Path, stage: str) -> Path | None:
    found = sorted((root / "run" / "stages").glob(f"{stage}-*"))
    return found[0] if found else None


class Run:
    """`charter run` in the background."""

    def __init__(self, root: Path, *words: str) -> None:
        self.root = root
        self._log = (root / "run.log").open("ab")
        self.process = subprocess.Popen(
            [*CHARTER, "run", "--yes", *words], cwd=root, env=environment(), stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, what: Callable[[], bool], *, seconds: float = HANG_SECONDS) -> None:
        """Wait until something is so; the run may not end before."""

        def is_so() -> bool:
            assert self.process.poll() is None, (self.root / "run.log").read_text()
            return what()

        eventually(is_so, lambda: (self.root / "run.log").read_text(), seconds=seconds, every=0.02)

    def kill_supervisor(self) -> None:
        """SIGKILL to `charter run` alone: the rest has to notice."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """SIGKILL to every process that the run has started, the guard of the engine among them."""
        pids = sorted(descendants(self.process.pid), reverse=True)
        for pid in [self.process.pid, *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Leave nothing running."""
        if self.process.poll() is None:
            self.kill_all()
        self._log.close()


def has_step(root: Path, stage: str) -> Callable[[], bool]:
    """Whether the engine has logged a step of a stage."""

    def look() -> bool:
        directory = stage_dir(root, stage)
        return directory is not None and (directory / "metrics.jsonl").exists()

    return look


def has_checkpoint(root: Path, stage: str, step: int) -> Callable[[], bool]:
    """Whether Charter has a checkpoint of a stage of that step or a later one, and it is not done."""

    def look() -> bool:
        directory = stage_dir(root, stage)
        names = [] if directory is None else [path.name for path in (directory / "state").glob("step-*")]
        return any(int(name.partition("-")[2]) >= step for name in names if name.partition("-")[2].isdecimal())

    return look


def engine_processes(root: Path) -> dict[int, str]:
    """Processes of engines that work for stages of a project, with their command lines."""
    found = {}
    wanted = f"{MARK}={root}".encode()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                if any(word.startswith(wanted) for word in Path("/proc", name, "environ").read_bytes().split(b"\0")):
                    found[int(name)] = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def trainers(root: Path) -> list[int]:
    """The processes of TRL itself."""
    return [pid for pid, words in engine_processes(root).items() if "trl.scripts" in words and "guard.py" not in words]


@contextlib.contextmanager
def slowed(root: Path, *, stopped_seconds: float = 0.1, running_seconds: float = 0.02) -> Iterator[None]:
    """TRL at a fraction of its speed meanwhile, stopped and continued in turn, so that a kill meets it at work."""
    done = threading.Event()

    def send(number: int) -> None:
        for pid in trainers(root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def work() -> None:
        while not done.is_set():
            send(signal.SIGSTOP)
            done.wait(stopped_seconds)
            send(signal.SIGCONT)
            done.wait(running_seconds)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def descendants(pid: int) -> set[int]:
    below: dict[int, set[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            below.setdefault(parent, set()).add(int(name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = below.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def kill_each(
    root: Path, kills: Mapping[str, str] = KILLS, *, every: int, steps: int, seed: int
) -> list[dict[str, Any]]:
    """Run stages with one kill in each, of the kind that is named, at a random moment after a checkpoint."""
    draw, done = random.Random(seed), []
    for stage, how in kills.items():
        hold(root, stage, before_step=steps)
        with contextlib.closing(Run(root, *(word for name in kills for word in ("--only", name)))) as run:
            run.wait_for(has_step(root, stage))
            with slowed(root):
                run.wait_for(has_checkpoint(root, stage, every))
                time.sleep(draw.uniform(0.0, 0.5))
            known = sorted(path.name for path in (stage_dir(root, stage) / "state").glob("step-*"))
            kill(run, how)
            let_go(root, stage)
            assert how != "engine" or run.process.wait(timeout=HANG_SECONDS) == 0, (root / "run.log").read_text()
            done.append({"stage": stage, "killed": how, "had": known[-1]})
    return done


def kill(run: Run, how: str) -> None:
    """Kill what is named: TRL's processes, the supervisor alone, or everything."""
    if how == "engine":
        found = trainers(run.root)
        assert found, "there is no trainer to kill"
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    elif how == "supervisor":
        run.kill_supervisor()
        eventually(
            lambda: not engine_processes(run.root), lambda: engine_processes(run.root), seconds=HANG_SECONDS, every=0.02
        )
    else:
        run.kill_all()


def outputs_of(root: Path) -> dict[str, dict[str, str]]:
    """Hashes of the outputs of every stage."""
    return {stage["name"]: stage["outputs"] for stage in answered(root, "status")["stages"]}
