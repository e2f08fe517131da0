"""Signs of life while something long runs in one call: hashing a large checkpoint, merging shards by a program."""

import contextlib
import threading
from collections.abc import Iterator

from charter.artifacts.stage_dir import StageDir

EVERY_SECONDS = 1.0


@contextlib.contextmanager
def beating(stage: StageDir) -> Iterator[None]:
    """Say every second that this process is still at what it began."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(EVERY_SECONDS):
            stage.alive()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
