"""Write the data of the template tools-tiny: sums and products, made by rule and split by their two numbers.

A problem belongs to the test where the hash of its two numbers says so, so that no pair of numbers is on both sides, in
whatever order and under whatever operation. Some demonstrations call the calculator and answer with what it says; the
others answer at once, with a drawn number.
"""

import hashlib
import json
import random
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "src" / "charter" / "templates" / "data"
SHARE_OF_CALLS = 0.4
"""Of the demonstrations; supervised training so learns both forms, and when to use which from nobody."""
DEMONSTRATIONS, PROBLEMS, TESTS, SEED = 2_000, 1_000, 400, 7
WORDS = {"plus": "+", "times": "*"}


def is_test(first: int, second: int) -> bool:
    """Return True for a quarter of the pairs of numbers, by their hash.

    >>> is_test(17, 24) == is_test(24, 17)
    True
    """
    low, high = sorted((first, second))
    return hashlib.sha256(f"{low} {high}".encode()).digest()[0] % 4 == 0


def files() -> dict[str, list[dict[str, object]]]:
    """The rows of every file by its name."""
    draw = random.Random(SEED)
    problems = [(a, word, b) for a in range(10, 100) for b in range(10, 100) for word in WORDS]
    draw.shuffle(problems)
    practice = [problem for problem in problems if not is_test(problem[0], problem[2])]
    tests = [problem for problem in problems if is_test(problem[0], problem[2])]
    return {
        "arithmetic_demonstrations.jsonl": [_demonstration(*item, draw) for item in practice[:DEMONSTRATIONS]],
        "arithmetic_problems.jsonl": [_problem(*item) for item in practice[DEMONSTRATIONS : DEMONSTRATIONS + PROBLEMS]],
        "arithmetic_test.jsonl": [_problem(*item) for item in tests[:TESTS]],
    }


def _problem(first: int, word: str, second: int) -> dict[str, object]:
    value = first + second if word == "plus" else first * second
    text = f"{first} {word} {second}"
    return {"id": text.replace(" ", "-"), "prompt": text, "answer": str(value)}


def _demonstration(first: int, word: str, second: int, draw: random.Random) -> dict[str, object]:
    problem = _problem(first, word, second)
    turns = [("user", problem["prompt"])]
    if draw.random() < SHARE_OF_CALLS:
        call = f"<calc>{first}{WORDS[word]}{second}</calc>"
        turns += [("assistant", call), ("user", problem["answer"]), ("assistant", problem["answer"])]
    else:
        turns.append(("assistant", str(draw.randrange(20, 200) if word == "plus" else draw.randrange(100, 10_000))))
    return {"id": problem["id"], "messages": [{"role": role, "content": text} for role, text in turns]}


if __name__ == "__main__":
    for name, rows in files().items():
        (DATA / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
