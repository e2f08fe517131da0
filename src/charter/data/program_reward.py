"""The reward of a program that an answer holds: the tests of its row that it passes, in a sandbox."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from charter.data.sandbox import Ended, run_program
from charter.spec.rewards import PROGRAM_SECONDS

FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", flags=re.DOTALL)
"""Code between fences, as chat models write it."""
MEMORY_MIB = 512


def program(
    answer: str,
    row: Mapping[str, Any],
    seconds: float = PROGRAM_SECONDS,
    memory_mib: int = MEMORY_MIB,
    partial: bool = False,
    column: str = "tests",
) -> float | None:
    """1 where the answer's program passes all tests of its row, else 0; with `partial` the share that it passes.

    The program is the last fenced block; an answer without one gets 0. The row's tests are Python text that is run
    after the program and ends without an error, or a list of `{stdin, stdout}`, whose output is compared apart from
    space at the ends of lines; None where the row has none. All tests of an answer have `seconds` together: those that
    are left over when they are gone are not passed.
    """
    tests = row.get(column)
    if tests is None:
        return None
    cases = _cases(tests)
    blocks = FENCED.findall(answer)
    if not blocks:
        return 0.0
    until, passed = time.monotonic() + seconds, 0
    for entered, after, wanted in cases:
        left = until - time.monotonic()
        if left <= 0:
            break
        ended = run_program(blocks[-1] + after, entered, seconds=left, memory_bytes=memory_mib * 2**20)
        passed += (passes := _passes(ended, wanted))
        if not passes and not partial:
            break
    return passed / len(cases) if partial else float(passed == len(cases))


def _cases(tests: object) -> list[tuple[str, str, str | None]]:
    """Return what each test enters, what runs after the program, and the output that it wants."""
    if isinstance(tests, str):
        return [("", f"\n\n{tests}\n", None)]
    if not isinstance(tests, Sequence) or not tests:
        raise ValueError(f"the row's tests are {type(tests).__name__}; text, or a list of {{stdin, stdout}}, is needed")
    cases: list[tuple[str, str, str | None]] = []
    for test in tests:
        if not isinstance(test, Mapping) or not {"stdin", "stdout"} >= set(test) or "stdout" not in test:
            raise ValueError(f"a test of the row is {test!r}; {{stdin: text, stdout: text}} is needed")
        cases.append((str(test.get("stdin", "")), "", str(test["stdout"])))
    return cases


def _passes(ended: Ended, wanted: str | None) -> bool:
    if ended.code != 0:
        return False
    return wanted is None or _lines(ended.output) == _lines(wanted)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]
