"""Runs of verl, OpenRLHF, NeMo RL and Megatron-LM, from what they print and log while they train."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import get_args

from charter.artifacts.file_facts import sha256_file
from charter.errors import DataError, UsageError
from charter.hosted.logged import LoggedStep
from charter.hosted.logs import megatron, nemo_rl, openrlhf, verl
from charter.pipeline.imports.found import Format, FoundRun, attempts_of

CONSOLES: Mapping[Format, Callable[[Iterable[str]], Iterable[LoggedStep]]] = {
    "verl": verl.console_steps,
    "openrlhf": openrlhf.console_steps,
    "nemo_rl": nemo_rl.console_steps,
    "megatron": megatron.console_steps,
}
JSON_LINES, EVENTS = ".jsonl", "events.out.tfevents.*"
LOG_SUFFIXES = (".log", ".txt", ".jsonl", ".out")
PROBED_LINES = 50_000
"""So far into a log its format is looked for."""


def read_engine_log(path: Path, format: Format | None = None) -> FoundRun:
    """The run that a log tells of; without a format the one whose reader finds steps in it."""
    if path.is_dir():
        return _read_events(path)
    lines, notes = _lines(path)
    if format is not None and format not in CONSOLES:
        raise UsageError(f"logs of {format} cannot be read; --format of a log is {', '.join(CONSOLES)}")
    chosen = format or _format_of(path, lines)
    attempts = attempts_of(steps_of(chosen, path, lines))
    if not attempts:
        raise DataError(f"{path}: no finished step of {chosen} is in its {len(lines)} lines; give another --format")
    return FoundRun(format=chosen, source=str(path), content=sha256_file(path), attempts=attempts, notes=notes)


def steps_of(format: Format, path: Path, lines: Iterable[str]) -> Iterable[LoggedStep]:
    """The steps in the log of an engine: of what it printed, or of the JSON lines that it wrote."""
    if format == "verl" and path.suffix == JSON_LINES:
        return verl.file_steps(path)
    return CONSOLES[format](lines)


def _read_events(path: Path) -> FoundRun:
    """A directory of TensorBoard events, which OpenRLHF writes."""
    files = sorted(path.rglob(EVENTS))
    attempts = attempts_of(openrlhf.event_steps(path)) if files else ()
    if not attempts:
        logs = sorted(item.name for item in path.iterdir() if item.suffix in LOG_SUFFIXES)
        hint = f"name one of {', '.join(logs[:5])}" if logs else "name the file that the run printed to"
        raise UsageError(f"{path} is a directory without a trainer_state.json, an MLflow run or events; {hint}")
    content = sha256("".join(sha256_file(file) for file in files).encode()).hexdigest()
    return FoundRun(format="openrlhf", source=str(path), content=content, attempts=attempts)


def _lines(path: Path) -> tuple[list[str], tuple[str, ...]]:
    """All whole lines, and what is said of a last one that has no end."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; name the log of a run") from None
    lines = text.split("\n")
    torn = lines.pop()
    said = (f"line {len(lines) + 1} has no end and was left out: the log was still being written, or was cut",)
    return lines, said if torn.strip() else ()


def _format_of(path: Path, lines: list[str]) -> Format:
    found: list[Format] = [
        name for name in CONSOLES if next(iter(steps_of(name, path, lines[:PROBED_LINES])), None) is not None
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(get_args(Format))
    if not found:
        raise UsageError(
            f"{path}: neither a trainer_state.json nor a log with steps of {', '.join(CONSOLES)}; "
            f"say what it is with --format ({known})"
        )
    raise UsageError(f"{path} can be read as {' and as '.join(found)}; say which with --format")
