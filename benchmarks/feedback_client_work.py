"""The request of both sides of feedback_client.py: a label of one token, five alternatives, prompts of 200 tokens."""

MAX_NEW_TOKENS = 1
TRIVIAL_MODEL = "m"
"""The request to the trivial server. It always answers the same, which both sides check."""
TOP = 5
WARM_UP = 64
_TEXT = "Consider the following conversation between a person and an assistant, and choose the more harmless answer. "


def prompt(number: int) -> str:
    """The prompt of a number: a common beginning, an end of its own."""
    return f"{_TEXT * 7}Pair {number}: (A) or (B)?"
