"""A stage of another engine on a tiny model; the engine is `fake_trainer.py`, which fails as a test asks."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "train"))


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A base model, conversations and pairs, as stages leave them."""
    import tiny

    place = tmp_path_factory.mktemp("inputs")
    tiny.language_model().save(place / "base" / "model")
    question = [[{"role": "user", "content": f"How do I learn about {topic}?"}] for topic in tiny.TOPICS]
    good = [{"role": "assistant", "content": f"Read a book about {topic}."} for topic in tiny.TOPICS]
    bad = {"role": "assistant", "content": "No."}
    written = {
        "chats": [{"messages": [*asked, answer]} for asked, answer in zip(question, good, strict=True)],
        "pairs": [
            {"prompt": asked, "chosen": [answer], "rejected": [bad]}
            for asked, answer in zip(question, good, strict=True)
        ],
    }
    for name, rows in written.items():
        (place / name).mkdir()
        lines = "".join(json.dumps({"id": str(number), **row}) + "\n" for number, row in enumerate(rows))
        (place / name / "records.jsonl").write_text(lines)
    return place
