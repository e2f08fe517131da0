"""The plain launcher: every stage process is a child of the supervisor, started anew."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from charter.artifacts import durable, faults
from charter.artifacts.group import log_name
from charter.artifacts.server_files import SERVERS, SERVERS_DIR
from charter.launch.commands import stage_command
from charter.launch.group import GroupHandle, rank_environments
from charter.launch.launcher import StageStart
from charter.launch.machine import VISIBLE, visible_gpus
from charter.launch.servers import ServerKeeper


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that stages inherit: this process's, but not the meeting place of its own job."""
    own = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    return {**own, **environment, faults.SUPERVISOR_PID: str(os.getpid())}


def with_servers(request: StageStart) -> tuple[StageStart, ServerKeeper | None]:
    """Start the pools of a stage on this machine; return what the stage is started with, and who keeps them."""
    if not request.pools:
        return request, None
    directory = request.stage_dir / SERVERS_DIR / secrets.token_hex(4)
    durable.make_dir(directory)
    keeper = ServerKeeper(request.pools, directory=directory, logs=request.stage_dir, accelerators=request.accelerators)
    return replace(request, environment={**request.environment, SERVERS: str(directory)}), keeper


def at_end(keeper: ServerKeeper | None, give_back: Callable[[], None]) -> Callable[[], None]:
    """Return what follows the end of a stage: its servers end, its devices are free."""

    def end() -> None:
        if keeper is not None:
            keeper.end()
        give_back()

    return end


class DeviceShares:
    """The accelerators of this machine, shared out to the stages that run at one time.

    Each start has those that the fewest others use: devices of its own as long as there are enough.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._uses = dict.fromkeys(names, 0)

    def taken(self, request: StageStart) -> tuple[StageStart, Callable[[], None]]:
        """Return the start of a stage with its devices, and how they are given back.

        A stage with servers shares its devices with them by another plan, and one without devices sees what is there.
        """
        if not request.devices or request.pools or not self._uses:
            return request, lambda: None
        names = [*self._uses]
        fewest = sorted(names, key=lambda name: (self._uses[name], names.index(name)))[: request.devices]
        for name in fewest:
            self._uses[name] += 1

        def give_back() -> None:
            for name in fewest:
                self._uses[name] -= 1

        visible = ",".join(sorted(fewest, key=names.index))
        return replace(request, environment={**request.environment, VISIBLE: visible}), give_back


class ProcessLauncher:
    """Every stage process is started anew: `python -m charter.train.sft --stage-dir D`."""

    def __init__(self, *, environment: Mapping[str, str]) -> None:
        self._environment = inherited_environment(environment)
        self._started: list[ChildHandle] = []
        self._keepers: list[ServerKeeper] = []
        self._devices = DeviceShares(visible_gpus())

    def start(self, request: StageStart) -> GroupHandle:
        """Start the processes of a stage, each with its output in a log of its own."""
        request, give_back = self._devices.taken(request)
        request, keeper = with_servers(request)
        members = [
            self._child(request, rank, environment) for rank, environment in enumerate(rank_environments(request))
        ]
        self._started += members
        self._keepers += [] if keeper is None else [keeper]
        return GroupHandle(members, at_end=at_end(keeper, give_back))

    @property
    def elsewhere(self) -> bool:
        """Stages are processes of this machine."""
        return False

    def facts_of(self, stage: str) -> None:
        """This machine computes."""

    def under_way(self, request: StageStart) -> bool:
        """Nothing is: what a dead supervisor has started died with it."""
        return False

    def end_left(self, stage_dir: Path) -> None:
        """Nothing runs by itself."""

    def renew(self) -> None:
        """Nothing stands between the supervisor and its children."""

    def end_all(self) -> None:
        """End what still runs."""
        self.close()

    def close(self) -> None:
        """End what still runs."""
        for handle in self._started:
            handle.send(signal.SIGKILL)
        for handle in self._started:
            handle.wait()
        for keeper in self._keepers:
            keeper.end()

    def _child(self, request: StageStart, rank: int, environment: Mapping[str, str]) -> "ChildHandle":
        with (request.stage_dir / log_name(rank)).open("ab") as log:
            return ChildHandle(
                subprocess.Popen(
                    stage_command(request.module, request.stage_dir),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**self._environment, **environment},
                    start_new_session=True,
                )
            )


class ChildHandle:
    """A stage process that is a child of the supervisor."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()
