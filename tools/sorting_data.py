"""Write the data of the template rlvr-tiny: three letters to be put in order, made by rule and split by their letters.

A problem belongs to the test where the hash of its three letters says so, so that no set of letters is on both sides,
in whatever order. Of the demonstrations some are right; in the others the letters stand in a drawn order.
"""

import hashlib
import itertools
import json
import random
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "src" / "charter" / "templates" / "data"
LETTERS = "abcdefghijklmnop"
SHARE_RIGHT = 0.3
"""Of the demonstrations; the others teach the form of an answer, and no order."""
DEMONSTRATIONS, PROBLEMS, TESTS, SEED = 1_200, 800, 400, 7


def is_test(letters: str) -> bool:
    """Return True for a quarter of the sets of letters, by their hash.

    >>> is_test("abc") == is_test("cab")
    True
    """
    return hashlib.sha256("".join(sorted(letters)).encode()).digest()[0] % 4 == 0


def files() -> dict[str, list[dict[str, object]]]:
    """The rows of every file by its name."""
    draw = random.Random(SEED)
    orders = ["".join(order) for order in itertools.permutations(LETTERS, 3)]
    draw.shuffle(orders)
    practice = [order for order in orders if not is_test(order)]
    demonstrations = [_demonstration(order, draw) for order in practice[:DEMONSTRATIONS]]
    problems = [_problem(order) for order in practice[DEMONSTRATIONS : DEMONSTRATIONS + PROBLEMS]]
    shuffled = [{**row, "answer": " ".join(draw.sample(str(row["id"]), 3))} for row in problems]
    tests = [_problem(order) for order in orders if is_test(order)][:TESTS]
    return {
        "sorting_demonstrations.jsonl": demonstrations,
        "sorting_problems.jsonl": problems,
        "sorting_shuffled.jsonl": shuffled,
        "sorting_test.jsonl": tests,
    }


def _question(order: str) -> str:
    return f"sort {' '.join(order)}"


def _problem(order: str) -> dict[str, object]:
    return {"id": order, "prompt": _question(order), "answer": " ".join(sorted(order))}


def _demonstration(order: str, draw: random.Random) -> dict[str, object]:
    answer = sorted(order) if draw.random() < SHARE_RIGHT else draw.sample(order, 3)
    turns = [{"role": "user", "content": _question(order)}, {"role": "assistant", "content": " ".join(answer)}]
    return {"id": order, "messages": turns}


if __name__ == "__main__":
    for name, rows in files().items():
        (DATA / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
