"""The rows that stages are measured on."""

import json
import random
from pathlib import Path
from typing import Any

ROWS = 64


def words(count: int, draw: random.Random) -> str:
    """A text of random letters: byte-level tokens, about one per letter."""
    return " ".join("".join(draw.choices("bcdfghjklmnpqrstvwxz", k=3)) for _ in range(count))


def write_data(place: Path, seq: int) -> None:
    """Files of rows that are all longer than `seq` tokens, so that every sequence is cut to its full length."""
    draw = random.Random(1)
    turn = {"role": "user", "content": words(1, draw)}
    long = 3 * seq // 2
    rows: dict[str, Any] = {
        "texts": [{"text": words(long, draw)} for _ in range(ROWS)],
        "talks": [{"messages": [turn, {"role": "assistant", "content": words(long, draw)}]} for _ in range(ROWS)],
        "pairs": [
            {"prompt": words(long, draw), "chosen": words(long, draw), "rejected": words(long, draw)}
            for _ in range(ROWS)
        ],
        "prompts": [{"prompt": words(long, draw)} for _ in range(ROWS)],
    }
    for name, items in rows.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
