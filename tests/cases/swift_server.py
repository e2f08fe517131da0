"""OpenStack Swift with its S3 interface, from Debian's packages, on one disk: a real object store for tests.

Needs swift-proxy, swift-account, swift-container, swift-object and memcached.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from waiting import eventually

PROGRAMS = (
    "swift-proxy-server", "swift-account-server", "swift-container-server", "swift-object-server",
    "swift-ring-builder", "memcached",
)  # fmt: skip
ACCESS, SECRET = "test:tester", "testing"
KINDS = ("account", "container", "object")
PROXY = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {directory}
[pipeline:main]
pipeline = catch_errors cache bulk s3api tempauth copy slo dlo symlink versioned_writes proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
allow_account_management = true
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcache}
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_object_versioning = true
"""
PLAIN_FILTERS = ("catch_errors", "bulk", "copy", "slo", "dlo", "symlink")
STORAGE = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {directory}
devices = {directory}/disks
mount_check = false
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""


def is_installed() -> bool:
    """Whether every program is there."""
    return all(shutil.which(name) for name in PROGRAMS) and Path("/etc/swift/swift.conf").exists()


@dataclass
class SwiftServer:
    """One replica on one disk; `start` returns when it answers."""

    directory: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        """Where its S3 interface answers."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Make the rings and start the servers."""
        (self.directory / "disks" / "d1").mkdir(parents=True)
        ports = {kind: free_port() for kind in (*KINDS, "memcache", "proxy")}
        self.port, user = ports["proxy"], os.environ.get("USER", "root")
        for kind in KINDS:
            self._ring(kind, ports[kind])
            text = STORAGE.format(port=ports[kind], user=user, directory=self.directory, kind=kind)
            (self.directory / f"{kind}.conf").write_text(text)
        filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in PLAIN_FILTERS)
        proxy = PROXY.format(port=self.port, user=user, directory=self.directory, memcache=ports["memcache"])
        (self.directory / "proxy.conf").write_text(proxy + filters)
        self._begin("memcached", "-l", "127.0.0.1", "-p", str(ports["memcache"]), "-u", user)
        for kind in (*KINDS, "proxy"):
            self._begin(f"swift-{kind}-server", str(self.directory / f"{kind}.conf"))
        for port in ports.values():
            self._wait_for(port)

    def stop(self) -> None:
        """End every server."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

    def _ring(self, kind: str, port: int) -> None:
        builder = self.directory / f"{kind}.builder"
        for arguments in (
            ("create", "4", "1", "1"),
            ("add", "--region", "1", "--zone", "1", "--ip", "127.0.0.1", "--port", str(port), "--device", "d1",
             "--weight", "1"),
            ("rebalance",),
        ):  # fmt: skip
            done = subprocess.run(["swift-ring-builder", str(builder), *arguments], capture_output=True, check=False)
            assert done.returncode in (0, 1), done.stdout  # 1 is a warning

    def _begin(self, *command: str) -> None:
        with (self.directory / f"{Path(command[0]).name}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def _wait_for(self, port: int) -> None:
        def answers() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
            return False

        eventually(answers, f"nothing answers at {port}; see the logs in {self.directory}", seconds=600, every=0.05)


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
