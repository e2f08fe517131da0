"""The child process: one question per line on stdin, one answer per line on stdout, until stdin ends."""

import json
import os
import sys
from typing import Any, TextIO

from charter.dashboard.work.jobs import JOBS
from charter.errors import CharterError

POLITENESS = 5
"""Added to the process's niceness: pages come first."""


def main() -> None:
    """Answer until there is nobody left to ask."""
    os.nice(POLITENESS)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        _say(answers, answer(request, lambda told: _say(answers, {"told": told})))


def answer(asked: dict[str, Any], tell: Any) -> dict[str, Any]:
    """Return the result of a job, or the reason why it has none, in words for people."""
    try:
        return {"found": JOBS[asked["job"]](asked["arguments"], tell)}
    except CharterError as error:
        return {"error": str(error), "label": error.label}
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"error": f"a defect of Charter ({type(error).__name__}); the terminal of the dashboard has the rest"}


def _say(answers: TextIO, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value, allow_nan=False) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
