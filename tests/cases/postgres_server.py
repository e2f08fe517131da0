"""A PostgreSQL server of its own for tests: a private directory and port, as the system's packages install it."""

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from held_port import held_port
from waiting import eventually

SECONDS_TO_START = 600
"""Only there to end a hang."""
OWNER = "postgres"
"""The user that Debian's package makes; the server refuses to run as root."""


def binaries() -> Path | None:
    """Where the newest installed server lies; None when there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@dataclass(kw_only=True)
class PostgresServer:
    """A server that trusts every local user, which is for tests only."""

    directory: Path
    """For its data; empty or absent."""
    port: int = field(default_factory=held_port)
    databases: int = 0

    def make(self) -> None:
        """Initialise the data directory, with page checksums."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(self.directory, OWNER, OWNER)
            self.directory.chmod(0o700)
        command = [self._program("initdb"), "-D", str(self.data), "-A", "trust", "-U", OWNER, "-k", "-N", "-E", "UTF8"]
        self._run([*command, "--locale=C"])

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -c unix_socket_directories={self.data}"
        log = self.directory / "log"
        self._run([self._program("pg_ctl"), "-D", str(self.data), "-l", str(log), "-o", options, "-W", "start"])
        eventually(
            self._answers, lambda: f"the server did not start:\n{log.read_text()}", seconds=SECONDS_TO_START, every=0.05
        )

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            return True
        return False

    def stop(self, how: str = "immediate") -> None:
        """Stop it; `immediate` is what a crash looks like, `fast` hangs up on everybody and writes all down."""
        self._run([self._program("pg_ctl"), "-D", str(self.data), "-m", how, "-w", "stop"])

    def new_database(self) -> str:
        """Make a database and return its address."""
        self.databases += 1
        name = f"ledger_{self.databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        """The address of a database."""
        return f"postgresql://{OWNER}@127.0.0.1:{self.port}/{database}"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.directory / "data"

    def _program(self, name: str) -> str:
        where = binaries()
        assert where is not None, "PostgreSQL is not installed; tools/system_packages.sh installs it"
        return str(where / name)

    def _run(self, command: list[str]) -> None:
        # Not by `runuser`, which stops itself when its child is stopped, and nobody wakes it (tools/stutter.py).
        owner = {"user": OWNER, "group": OWNER, "extra_groups": []} if os.geteuid() == 0 else {}
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **owner
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
