"""Rows as stages export them, with texts that are hard to carry, and the record that their card is made from."""

from collections import Counter

HARD = ("plain", "zwei\nZeilen\r\n", "日本語 😀", "  spaces  ", '"quotes" \\ \t', "\u202ertl", "a\u2028b", "\x00null")
RECORD = {
    "stage": "label",
    "kind": "label",
    "fingerprint": "ab" * 32,
    "identity": {"spec": {"pairs": 8}, "seed": 7, "constitution": "cd" * 32},
    "inputs": {"judge": [{"name": "judge", "source": "stage", "fingerprint": "ef" * 32}]},
    "versions": {"charter": "0.1"},
}


def pair(number, text):
    return {
        "id": f"p{number}",
        "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}],
        "chosen": [{"role": "assistant", "content": f"{text} yes"}],
        "rejected": [{"role": "assistant", "content": "no"}],
        "chosen_probability": 0.5 + number / 20,
        "principles": ["kind", "honest"][: 1 + number % 2],
        **({"margin": 1.5} if number == 5 else {}),
    }


PAIRS = [pair(number, text) for number, text in enumerate(HARD)]
TEXTS = [{"id": f"t{number}", "text": text} for number, text in enumerate(HARD)]


def counted(rows):
    """Columns and kinds as an export counts them."""
    kinds = Counter("pair" if "chosen" in row else "text" for row in rows)
    return Counter(name for row in rows for name in row), kinds
