"""The exceptions a user can meet, and the exit code of each.

    CharterError                      1
      SpecError                       2   the configuration is invalid (holds every problem found)
      UsageError                      2   the command cannot be carried out as asked
      InfeasibleError                 3   nothing fits
      BudgetError                     4   over budget
      StageError                      5   a stage failed
      InterruptedRunError             6   interrupted, can be resumed
      MissingExtraError               7   an extra or a tool is not installed
      DataError                       8   data or checkpoint check failed
        CatalogError                  8   a catalog row without source, date or confidence

Every message says what was asked, what was found and what would work. Exit code 130 is Ctrl-C.
"""

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from charter.redaction import without_secrets, without_value

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "run": ("torch", "transformers", "tokenizers", "safetensors", "sqlalchemy", "psutil", "aiohttp", "filelock"),
    "scale": ("scipy",),
    "adapters": ("peft", "bitsandbytes"),
    "data": ("pyarrow", "datasketch"),
    "math": ("math_verify",),
    "verifiers": ("verifiers",),
    "store": ("fsspec", "s3fs"),
    "postgres": ("psycopg",),
    "ray": ("ray",),
    "mlflow": ("mlflow", "alembic"),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "meter": ("pynvml", "prometheus_client"),
    "ui": ("starlette", "uvicorn", "jinja2"),
}
"""Modules that each extra of this package brings; one that several bring stands under the first."""


class ExitCode(IntEnum):
    """Exit codes of the `charter` command and of stage processes."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    INFEASIBLE = 3
    BUDGET = 4
    STAGE = 5
    INTERRUPTED = 6
    MISSING_EXTRA = 7
    DATA = 8
    CTRL_C = 130


class CharterError(Exception):
    """Base of every error Charter raises on purpose."""

    exit_code: int = ExitCode.INTERNAL
    label = "internal"

    def __str__(self) -> str:
        """Return the message without secrets, wherever it goes: terminal, log, failure.json, event."""
        return without_secrets(super().__str__())


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong in a file: where it is, what it is, what would work."""

    message: str
    path: str = ""
    file: str = ""
    line: int | None = None
    source_line: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = ":".join(part for part in (without_value(self.file), str(self.line or "")) if part)
        head = ": ".join(part for part in (where, self.path, self.message) if part)
        source = without_value(self.source_line)
        quoted = f"\n  {self.line:>4} | {source}" if source and self.line else ""
        return head + quoted + (f"\n  {self.hint}" if self.hint else "")


class SpecError(CharterError):
    """The configuration is invalid; `problems` holds all that was found, not only the first."""

    exit_code = ExitCode.USAGE
    label = "config"

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems = (Problem(message=problems),) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(CharterError):
    """The command cannot be carried out as asked."""

    exit_code = ExitCode.USAGE
    label = "usage"


class InfeasibleError(CharterError):
    """Nothing fits; the message names what overflows and what would fit."""

    exit_code = ExitCode.INFEASIBLE
    label = "infeasible"


class BudgetError(CharterError):
    """The plan or the run is over its budget."""

    exit_code = ExitCode.BUDGET
    label = "budget"


class StageError(CharterError):
    """A stage failed."""

    exit_code = ExitCode.STAGE
    label = "stage"


class InterruptedRunError(CharterError):
    """The run was interrupted at a safe point and can be resumed."""

    exit_code = ExitCode.INTERRUPTED
    label = "interrupted"


class MissingExtraError(CharterError):
    """An optional package or tool is not installed."""

    exit_code = ExitCode.MISSING_EXTRA
    label = "extra"


def how_to_install(*extras: str) -> str:
    """Return how extras of this package are installed; no package index has it yet, so from its directory.

    >>> how_to_install("mlflow", "wandb")
    "pip install '.[mlflow,wandb]' in Charter's directory"
    """
    return f"pip install '.[{','.join(extras)}]' in Charter's directory"


@contextmanager
def needing(what: str, extra: str, *, otherwise: str = "") -> Iterator[None]:
    """Say what needs a package, and the extra that brings it, where the package is not installed.

    >>> with needing("metering needs nothing_like_it", "meter", otherwise="; or meter nothing"):
    ...     import nothing_like_it
    Traceback (most recent call last):
    charter.errors.MissingExtraError: metering needs nothing_like_it: pip install '.[meter]' in Charter's directory; or meter nothing
    """  # noqa: E501
    try:
        yield
    except ImportError:
        raise MissingExtraError(f"{what}: {how_to_install(extra)}{otherwise}") from None


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra of a missing package; None for a package that no extra brings.

    >>> str(missing_extra(ModuleNotFoundError(name="sqlalchemy.orm")))
    "sqlalchemy is not installed; it comes with: pip install '.[run]' in Charter's directory"
    >>> missing_extra(ModuleNotFoundError(name="charter.nothing")) is None
    True
    """
    package = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if package in modules:
            return MissingExtraError(f"{package} is not installed; it comes with: {how_to_install(extra)}")
    return None


REFUSALS = {
    errno.EROFS: "lies in a read-only place; what only looks works there: status, report, cost report, ui",
    errno.EACCES: "may not be used by this user; ask its owner, or work on a copy",
    errno.EPERM: "may not be used by this user; ask its owner, or work on a copy",
    errno.ENOSPC: "does not fit on its disk; make room, and call the command again",
    errno.EDQUOT: "is over this user's quota of disk; make room, and call the command again",
}
"""What a system refuses that is no defect of ours, by its number."""


def not_utf_8(error: UnicodeEncodeError) -> UsageError | None:
    """Return the error for half a character, which no file of Charter's can hold; None for what may be a defect.

    Python reads a byte of an argument that is not UTF-8 as half of a pair of code units, and so does JSON an escape.

    >>> str(not_utf_8(UnicodeEncodeError("utf-8", "key\\udcff", 3, 4, "surrogates not allowed")))
    "half a character ('\\\\udcff') is in an argument or in what was read; Charter's files are UTF-8"
    """
    if error.reason != "surrogates not allowed":
        return None
    half = ascii(error.object[error.start])
    return UsageError(f"half a character ({half}) is in an argument or in what was read; Charter's files are UTF-8")


def refused(error: OSError) -> UsageError | None:
    """Return the error that names the file or directory which the system refuses; None for what may be a defect.

    >>> str(refused(PermissionError(errno.EACCES, "Permission denied", "run/ledger.sqlite")))
    'run/ledger.sqlite may not be used by this user; ask its owner, or work on a copy (Permission denied)'
    >>> refused(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")) is None
    True
    """
    why = REFUSALS.get(error.errno or 0)
    return None if why is None else UsageError(f"{error.filename or 'a file'} {why} ({error.strerror})")


class DataError(CharterError):
    """Data, an artifact or a checkpoint failed its check."""

    exit_code = ExitCode.DATA
    label = "data"


class CatalogError(DataError):
    """A catalog row lacks its source, date or confidence, or contradicts itself."""

    label = "catalog"


def loads_json(text: str | bytes, **options: Any) -> Any:
    """Return the value of a JSON text; what is nested too deeply or too long a number is a JSONDecodeError too.

    >>> loads_json('{"a": [1]}')
    {'a': [1]}
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # digits beyond what Python converts, bytes that are no UTF-8
        raise json.JSONDecodeError(str(error).partition(";")[0], "", 0) from None
