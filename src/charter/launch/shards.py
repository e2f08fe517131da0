"""Which shards of a stage are still to be made: a task whose agent has said that it is done is not asked again."""

from pathlib import Path

from charter.artifacts.job_files import JobFiles, numbers
from charter.errors import DataError


def missing_shards(stage_dir: Path, *, of: int) -> tuple[int, ...]:
    """The shards that an array must make now; empty where one process does what is left, and publishes.

    One process also makes up for what was lost after it was done: it looks at every batch.
    """
    done = done_shards(stage_dir, of=of)
    left = tuple(shard for shard in range(of) if shard not in done)
    return left if len(left) > 1 else ()


def done_shards(stage_dir: Path, *, of: int) -> set[int]:
    """The shards that arrays of so many tasks have made."""
    done: set[int] = set()
    for number in numbers(stage_dir):
        files = JobFiles(stage_dir, number)
        try:
            shards, total = files.shards()
        except (DataError, KeyError):
            continue
        if total == of:
            done |= {shards[record.place] for record in files.nodes() if record.exit_code == 0}
    return done
