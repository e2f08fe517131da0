"""The follower of a run: `python -m charter.tracking.forward --run-dir R`, a child of the supervisor.

It reads what stages and supervisor write anyway, collects it into journals, meters the stages of this machine, serves
the last figures to Prometheus, and keeps one sender per tracker. Stages know nothing of it, and the supervisor never
waits for it while the run lasts. Standard input says when the run ends: `end`, or its end when the supervisor died.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.stage_state import read_progress
from charter.errors import DataError
from charter.metering.row import METER_GLOB, MeterRow, row_of
from charter.metering.sampler import LocalMeters
from charter.tracking.journal import (
    PROMETHEUS,
    Collector,
    TrackingLock,
    health_of,
    health_path,
    live_path,
    log_path,
    tracking_dir,
)
from charter.tracking.progress import RunProgress, Standing
from charter.tracking.run_facts import Followed, read_followed
from charter.tracking.send import DRAIN, Orders, said

# -------- The last figures of a run for Prometheus, on the loopback interface, while the run lasts.

ADDRESS = "127.0.0.1"
TAIL_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """One gauge: a name, what it is, and its values by labels."""

    name: str
    help: str
    labels: tuple[str, ...]
    values: tuple[tuple[tuple[str, ...], float], ...]


@dataclass(frozen=True, kw_only=True)
class StageMetrics:
    """Latest figures of one stage."""

    name: str
    standing: Standing
    progress: Mapping[str, Any] = field(default_factory=dict)
    machines: tuple[MeterRow, ...] = ()
    """The last sample of every node."""


def figures(run: str, standing: Standing, stages: tuple[StageMetrics, ...], *, cost_usd: float | None) -> list[Gauge]:
    """All gauges of a run; what is unknown has no value rather than zero. Pure."""
    machines = [(stage.name, row) for stage in stages for row in stage.machines if stage.standing.state == "running"]
    return [
        _gauge("charter_run_running", "Whether the run goes on.", ("run",), [((run,), standing.state == "running")]),
        _gauge("charter_run_cost_usd", "Spent so far.", ("run",), [((run,), cost_usd)]),
        *_stage_figures(run, stages),
        *_node_figures(run, machines),
        *_gpu_figures(run, machines),
    ]


def _stage_figures(run: str, stages: tuple[StageMetrics, ...]) -> Iterator[Gauge]:
    """Yield how far every stage is, and its last metrics."""
    labels = ("run", "stage")
    states = [((run, stage.name, stage.standing.state), 1.0) for stage in stages]
    yield _gauge("charter_stage_state", "1 for the state that a stage is in.", (*labels, "state"), states)
    attempts = [((run, stage.name), stage.standing.attempts) for stage in stages]
    yield _gauge("charter_stage_attempts", "Starts of a stage.", labels, attempts)
    for key, name, text in (
        ("step", "charter_stage_step", "Finished steps."),
        ("target_step", "charter_stage_target_step", "Steps that make the stage done."),
    ):
        yield _gauge(name, text, labels, [((run, stage.name), stage.progress.get(key)) for stage in stages])
    metrics = [
        ((run, stage.name, metric), float(value))
        for stage in stages
        for metric, value in (stage.progress.get("metrics") or {}).items()
        if isinstance(value, int | float)
    ]
    text = "The last value of a metric: loss, reward_mean, kl, tokens_per_second."
    yield _gauge("charter_stage_metric", text, (*labels, "metric"), metrics)


def _node_figures(run: str, machines: Sequence[tuple[str, MeterRow]]) -> Iterator[Gauge]:
    """Yield what running stages take of their nodes."""
    for field_name, name, text in (
        ("processes", "charter_node_processes", "Processes of the stage on a node."),
        ("node_cpu_share", "charter_node_cpu_ratio", "Share of the node's processors that is busy."),
        ("resident_bytes", "charter_job_resident_bytes", "Memory of the stage's processes on a node."),
    ):
        values = [((run, stage, row.node), getattr(row, field_name)) for stage, row in machines]
        yield _gauge(name, text, ("run", "stage", "node"), values)


def _gpu_figures(run: str, machines: Sequence[tuple[str, MeterRow]]) -> Iterator[Gauge]:
    """Yield what running stages take of their accelerators."""
    labels = ("run", "stage", "node", "gpu", "name")
    gpus = [
        ((run, stage, row.node, str(gpu.index), gpu.name), gpu) for stage, row in machines for gpu in row.gpus or ()
    ]
    for field_name, name, text in (
        ("activity", "charter_gpu_activity_ratio", "SM activity, or the share of time with a kernel."),
        ("memory_used_bytes", "charter_gpu_memory_used_bytes", "Memory taken of an accelerator."),
        ("power_watts", "charter_gpu_power_watts", "Power of an accelerator."),
    ):
        yield _gauge(name, text, labels, [(values, getattr(gpu, field_name)) for values, gpu in gpus])


class Endpoint:
    """Serves what it was shown last; without a port it does nothing."""

    def __init__(self, run_dir: Path, run: str) -> None:
        self._run_dir, self._run = run_dir, run
        self._figures: list[Gauge] = []
        self._server: Any = None

    @classmethod
    def open(cls, run_dir: Path, followed: Followed) -> "Endpoint":
        """Serve at the port that `metering` names; what is in the way is said in the log."""
        endpoint = cls(run_dir, followed.name)
        if followed.prometheus_port is not None:
            try:
                endpoint.serve(followed.prometheus_port)
            except (ImportError, OSError) as error:
                print(f"no Prometheus endpoint: {error}", file=sys.stderr, flush=True)
        return endpoint

    def serve(self, port: int) -> None:
        """Listen; 0 is any free port. Which one it is stands in `prometheus.json`."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(self)
        self._server, _ = start_http_server(port, addr=ADDRESS, registry=registry)
        address = f"http://{ADDRESS}:{self._server.server_port}/metrics"
        durable.write_hint(tracking_dir(self._run_dir) / PROMETHEUS, {"address": address})

    def show(self, progress: RunProgress) -> None:
        """Take in how the run is; two directories of one stage would be two values of one gauge."""
        if self._server is None:
            return
        stages = tuple(
            StageMetrics(
                name=name,
                standing=progress.stages[path],
                progress=read_progress(path),
                machines=tuple(last_rows(path)),
            )
            for name, path in progress.by_name.items()
        )
        self._figures = figures(self._run, progress.run, stages, cost_usd=_cost_usd(self._run_dir))

    def collect(self) -> Iterator[Any]:
        """Yield the metric families that `prometheus_client` asks for at each scrape."""
        from prometheus_client.core import GaugeMetricFamily

        for figure in self._figures:
            family = GaugeMetricFamily(figure.name, figure.help, labels=figure.labels)
            for labels, value in figure.values:
                family.add_metric(labels, value)
            yield family

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            (tracking_dir(self._run_dir) / PROMETHEUS).unlink(missing_ok=True)


def last_rows(stage_dir: Path) -> Iterator[MeterRow]:
    """The last sample of every node of a stage."""
    for path in sorted(stage_dir.glob(METER_GLOB)):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            rows = [row for row in map(row_of, file.read().splitlines()) if row is not None]
        yield from rows[-1:]


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Sequence[tuple[tuple[str, ...], Any]]) -> Gauge:
    samples = tuple((label_values, float(value)) for label_values, value in values if value is not None)
    return Gauge(name=name, help=text, labels=labels, values=samples)


def _cost_usd(run_dir: Path) -> float | None:
    try:
        cost = durable.read_json(live_path(run_dir)).get("cost_usd")
    except DataError:
        return None
    return None if cost is None else float(cost)


RESTART_SECONDS = 10.0
"""A sender that ended by itself is started again, but not sooner than this."""
POLL_SECONDS = 0.02


class Senders:
    """The senders of one run."""

    def __init__(self, run_dir: Path, followed: Followed) -> None:
        self._run_dir, self._followed = run_dir, followed
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, float] = {}

    def start(self) -> None:
        """Start one per tracker."""
        for tracker in self._followed.trackers:
            health_path(self._run_dir, tracker).unlink(missing_ok=True)
            self._start(tracker)

    def keep_alive(self) -> None:
        """Start again what has ended."""
        for tracker, process in self._processes.items():
            if process.poll() is not None and time.monotonic() - self._started[tracker] > RESTART_SECONDS:
                self._start(tracker)

    def end(self, *, drain: bool) -> None:
        """Wait for what is still on its way, each tracker as long as its `drain` says; end them all then.

        A tracker whose last call failed is not waited for, and without `drain` none is.
        """
        started = time.monotonic()
        for process in self._processes.values() if drain else ():
            _say(process, DRAIN + b"\n")
        while drain and any(self._is_awaited(tracker, started) for tracker in self._processes):
            time.sleep(POLL_SECONDS)
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()

    def _is_awaited(self, tracker: str, started: float) -> bool:
        waited = time.monotonic() - started
        if self._processes[tracker].poll() is not None or health_of(self._run_dir, tracker).get("failures", 0):
            return False
        return waited < float(self._followed.trackers[tracker].get("drain_seconds", 0.0))

    def _start(self, tracker: str) -> None:
        command = [sys.executable, "-m", "charter.tracking.send", "--run-dir", str(self._run_dir)]
        with log_path(self._run_dir, tracker).open("ab") as log:
            self._processes[tracker] = subprocess.Popen(
                [*command, "--tracker", tracker],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._started[tracker] = time.monotonic()


def _say(process: "subprocess.Popen[bytes]", words: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(words)
        process.stdin.flush()


LOOK_EVERY_SECONDS = 1.0
NICENESS = 10
LOCK_SECONDS = 30.0
"""How long the follower of a run before this one may take to leave."""


class RunFollower:
    """One run, followed until it ends."""

    def __init__(self, run_dir: Path, followed: Followed) -> None:
        self._run_dir = run_dir
        self._progress = RunProgress(run_dir=run_dir)
        self._collector = Collector(run_dir)
        self._meters = LocalMeters(run_dir, every_seconds=followed.meter_every_seconds)
        self._senders = Senders(run_dir, followed)
        self._endpoint = Endpoint.open(run_dir, followed)
        self._collects = bool(followed.trackers)
        self._behind = True

    def run(self, orders: Orders) -> None:
        """Follow until the run ends."""
        self._senders.start()
        while not (orders.leave or orders.draining):
            self._look()
            orders.wait(self._meters.seconds_to_next(LOOK_EVERY_SECONDS))
        self._look(last=True)
        self._endpoint.close()
        self._senders.end(drain=orders.draining)
        self._meters.close()

    def _look(self, *, last: bool = False) -> None:
        """Meter, show and collect what is new; an error of one is logged, and hurts neither the others nor the run."""
        for step in (
            self._progress.look,
            lambda: self._meters.look(self._progress.running(), last=last),
            lambda: self._endpoint.show(self._progress),
            self._collect,
        ):
            try:
                step()
            except Exception as error:
                print(f"{time.time():.1f} {said(error)}", file=sys.stderr, flush=True)

    def _collect(self) -> None:
        """Collect new rows, and see that somebody tells trackers of them."""
        if not self._collects:
            return
        self._senders.keep_alive()
        # Stages of earlier runs may have rows that nobody collected, so the first look is at all of them.
        stages = self._progress.stages if self._behind else self._progress.recent()
        self._collector.collect(tuple(stages))
        self._behind = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow until standard input says that the run has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    options = parser.parse_args(arguments)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    followed = read_followed(options.run_dir)
    if followed is None:
        return
    with TrackingLock(options.run_dir, wait_seconds=LOCK_SECONDS):
        RunFollower(options.run_dir, followed).run(Orders(sys.stdin.fileno(), end=b"end"))


if __name__ == "__main__":
    main()
