"""Reads everything that a stage has written, and says what is not as it was recorded."""

from collections.abc import Iterator
from pathlib import Path

from charter.artifacts.batch_files import batch_paths
from charter.artifacts.batch_files import damage as batch_damage
from charter.artifacts.job import JOB_FILE, read_job
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.store.copy import damage_of
from charter.errors import DataError


def damaged_in(directory: Path, *, database: str) -> Iterator[str]:
    """Yield the damage of a stage's job, record, outputs, batches and database, in words; its checkpoints are apart."""
    yield from _sealed(directory)
    for path in batch_paths(directory):
        if (wrong := batch_damage(path)) is not None:
            yield wrong
    yield from damaged_database(directory / database)


def damaged_database(path: Path) -> Iterator[str]:
    """Yield the damage of a database, if it is there."""
    if path.exists() and (wrong := damage_of(path)) is not None:
        yield f"{path} is damaged: {wrong}"


def _sealed(directory: Path) -> Iterator[str]:
    try:
        if (directory / JOB_FILE).exists():
            read_job(directory)
        record = read_record(directory)
        if record is not None and (wrong := damaged_output(directory, record, thorough=True)) is not None:
            yield f"{directory}: outputs: {wrong}"
    except DataError as error:
        yield str(error).partition("\n")[0]
