"""Fixed questions by which a served model is known again: how many are put to its servers, and of how many tokens."""

from dataclasses import dataclass
from math import ceil

QUESTIONS = (
    "Name an animal.",
    "Give me one word that rhymes with day.",
    "Complete this sentence: On the table there was a",
    "Which is the better colour for a door, and why?",
    "Someone asks you for a secret. What do you say?",
    "Write a number between one and a hundred.",
    "Is it ever right to lie?",
    "Tell me the beginning of a story.",
)
"""Open questions: the first token of an answer has many likely values, so that other weights show."""
REPEATS = 5
"""Rounds of a baseline: ten pairs, whose largest distance is what a server differs from itself."""
READ_TOKENS = 1
"""Of an answer whose log-probabilities are compared."""
TEXT_TOKENS = 16
"""Of an answer that is compared as text: two models rarely agree on so many."""
QUESTION_TOKENS = 15.0
"""Mean tokens that a server reads of a question: some 9 of its text and the marks of a chat's turns."""


@dataclass(frozen=True, kw_only=True)
class IdentityWatch:
    """Rounds of fixed questions that one model's servers are asked."""

    every: int
    """Answers of one server that a round vouches for; 0: no round at all."""
    servers: int = 1
    by_text: bool = False
    """Whether the servers give no log-probabilities."""
    has_baseline: bool = False
    """Whether an earlier stage of the run has asked the model: its five repeats are there."""

    @property
    def answer_tokens(self) -> int:
        """Most tokens of an answer."""
        return TEXT_TOKENS if self.by_text else READ_TOKENS

    def rounds(self, answers: float, *, confirmations: float = 1.0) -> float:
        """Return the rounds of one start of a stage that is given so many answers.

        `servers` at its start, `REPEATS - 1` more where there is no baseline, and one for every `every` answers of a
        server, or what is left of them, before each of `confirmations` equal parts of the answers is used. Servers
        share the answers evenly; rounds that a server's absence or a doubt adds are not counted.

        >>> IdentityWatch(every=256).rounds(24), IdentityWatch(every=256, has_baseline=True).rounds(512)
        (6.0, 3.0)
        """
        if not self.every or not answers:
            return 0.0
        part = answers / confirmations
        used = min(self.servers, part)
        first = self.servers + (0 if self.has_baseline else REPEATS - 1)
        return first + confirmations * used * ceil(part / used / self.every)
