"""JSONL files, line by line: every error names the file, the line and what was found there."""

from collections.abc import Iterator
from pathlib import Path

from charter.errors import DataError
from charter.spec.data_row import Bad, BadRowError, Row, parse_object


def read_jsonl(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The objects of a JSONL file, one per line; blank lines are skipped, `before` lines were read from other files."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}:{number}"
                try:
                    text = _decode(where, number, line)
                    value = parse_object(text, where) if text.strip() else None
                except BadRowError as error:
                    bad(error)
                    continue
                if value is not None:
                    yield Row(where=where, number=before + number, value=value)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _decode(where: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start + 1} of the line is 0x{line[error.start]:02x})"
        raise BadRowError(f"{where}: {message}; save the file as UTF-8") from None
