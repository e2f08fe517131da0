"""Samples what a run keeps into the ledger: its directory and its copies, when Charter has changed what they hold.

The directory is looked at when a run starts and ends, when a stage has ended, and now and then in between, since
checkpoints come and go; the place of copies after copies were made or removed.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from charter.artifacts.lease import host_id
from charter.artifacts.store.maintenance import bytes_below, place_name
from charter.artifacts.store.place import BUCKET
from charter.artifacts.store.s3 import own_endpoint
from charter.errors import CharterError
from charter.ledger import Ledger
from charter.ledger.attempt import tags_text
from charter.ledger.store import has_ledger, ledger_place
from charter.ledger.stored import RUN_DIRECTORY, StoredSample
from charter.plan.storage import place_price
from charter.run.paths import run_dir
from charter.spec.project import Project

LOOK_EVERY_SECONDS = 60.0
SHARE_OF_TIME = 0.01
"""That looking at a directory of very many files may take."""
SMALL_BYTES, SMALL_SHARE = 2**20, 0.001
"""Logs and the ledger grow all the time; a change below these is left to the next sample that has another reason."""
ENDED = frozenset({"stage_done", "stage_failed", "stage_interrupted", "stage_restart"})
"""Events after which a stage's directory holds something else."""


class StorageMeter:
    """Samples of one run, from one process; without a ledger it does nothing."""

    def __init__(self, project: Project, root: Path, ledger: Ledger | None = None) -> None:
        self._project, self._root = project, root.resolve()
        self._ledger = ledger
        self._last_bytes = 0
        self._sent_bytes: dict[str, int] = {}
        self._next_look = 0.0

    @contextmanager
    def into(self, ledger: Ledger) -> Iterator[None]:
        """Sample into a ledger from now on, and at both ends of the context.

        Copies that are made after it are sampled too, as long as the ledger is open.
        """
        self._ledger = ledger
        self.directory("run_started")
        try:
            yield
        except BaseException:
            with suppress(CharterError):  # why the run stopped is more to the point
                self.directory("run_ended")
            raise
        else:
            self.directory("run_ended")

    def listen(self, event: Mapping[str, Any]) -> None:
        """Sample when a stage has ended."""
        if event["event"] in ENDED:
            self.directory(str(event["event"]))

    def look(self) -> None:
        """Sample when it is time to: as often as is right for how long it takes."""
        if time.monotonic() >= self._next_look:
            self.directory("running", only_large_changes=True)

    def directory(self, why: str, *, only_large_changes: bool = False) -> None:
        """Record the bytes that the run's directory holds now."""
        if self._ledger is None:
            return
        started = time.monotonic()
        artifacts = self._project.storage.artifacts
        without = None if artifacts is None else Path(place_name(artifacts, root=self._root))
        num_bytes = bytes_below(run_dir(self._root), without=without)
        took = time.monotonic() - started
        self._next_look = time.monotonic() + max(LOOK_EVERY_SECONDS, took / SHARE_OF_TIME)
        last_bytes = self._last_bytes
        if not only_large_changes or abs(num_bytes - last_bytes) >= max(SMALL_BYTES, SMALL_SHARE * last_bytes):
            self._record(RUN_DIRECTORY, num_bytes, why=why)
            self._last_bytes = num_bytes

    def copies(self, num_bytes: int, sent_bytes: int, *, where: str | None = None, why: str = "copied") -> None:
        """Record the bytes that a place of copies holds now, and those that this process has sent there in all."""
        if self._ledger is None:
            return
        place = place_name(where or self._project.storage.artifacts or "", root=self._root)
        new_bytes = sent_bytes - self._sent_bytes.get(place, 0)
        self._record(place, num_bytes, sent_bytes=new_bytes, why=why)
        self._sent_bytes[place] = sent_bytes

    def _record(self, place: str, num_bytes: int, *, why: str, sent_bytes: int = 0) -> None:
        if self._ledger is None:
            return
        bucket = place if place.startswith(BUCKET) else None
        price = place_price(bucket, infra=self._project.resources.infra, own_endpoint=own_endpoint())
        sample = StoredSample(
            run=self._project.name,
            place=place,
            at_milliseconds=time.time_ns() // 1_000_000,
            bytes=num_bytes,
            sent_bytes=sent_bytes,
            why=why,
            host=host_id().partition("/")[0],
            provider=price.provider,
            price_micro_usd_per_gb_month=price.micro_usd_per_gb_month,
            price_source=price.source,
            price_as_of=price.as_of,
            owner=self._project.owner or "",
            tags=tags_text(self._project.tags),
        )
        self._ledger.record_stored([sample])


def sample_now(
    project: Project,
    root: Path,
    why: str,
    tell: Callable[[str], None],
    place: str | None = None,
    held_bytes: int = 0,
    sent_bytes: int = 0,
) -> None:
    """Sample the run's directory and a place of copies for a command, where the project has a ledger.

    What keeps it from that is only told: the command has done what it was asked for.
    """
    where = ledger_place(run_dir(root.resolve()), project.storage.ledger)
    try:
        if has_ledger(where):
            with Ledger.open(where, create=False) as ledger:
                meter = StorageMeter(project, root, ledger)
                meter.directory(why)
                if place is not None:
                    meter.copies(held_bytes, sent_bytes, where=place, why=why)
    except CharterError as error:
        tell(f"what is stored now could not be written into the ledger: {error}")
