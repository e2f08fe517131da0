"""The answer that a run is read for: whether its policy is better than the model before, and than a control.

From measured figures alone, and without torch: what an evaluation published goes in, sentences come out, the same in a
terminal, a report and on a page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from charter.errors import loads_json

MIN_ROWS = 30
"""Fewer held-out rows support no statement, whatever the interval says."""
RESULTS_FILE = "results.json"

Answer = Literal["yes", "no", "not shown", "not measured"]
PRINTED: Mapping[Answer, str] = {
    "yes": "Yes", "no": "No", "not shown": "Not proven", "not measured": "Not measured"
}  # fmt: skip
"""An answer as people read it, for whom something not shown is out of sight."""


@dataclass(frozen=True, kw_only=True)
class _Measure:
    key: str
    neutral: float
    """The value of no difference."""
    words: str
    """Sentence around the value."""


START = (
    _Measure(
        key="exact_match.gain",
        neutral=0.0,
        words="its share of right answers, less that of the model it started from, is {value}",
    ),
    _Measure(
        key="judge_win_rate.policy_length_controlled",
        neutral=0.5,
        words="the judge prefers it to the model it started from in {value} of cases, at equal length",
    ),
    _Measure(
        key="judge_win_rate.policy",
        neutral=0.5,
        words="the judge prefers it to the model it started from in {value} of cases",
    ),
    _Measure(
        key="independent_check.policy",
        neutral=0.5,
        words="an independent check prefers it to the model it started from in {value} of cases",
    ),
)
"""Evidence against the model before, the strongest first. The reward that was trained on is none."""
CONTROL = (
    _Measure(
        key="exact_match.over_control",
        neutral=0.0,
        words="its share of right answers, less the control's, is {value}",
    ),
    _Measure(
        key="judge_win_rate.difference", neutral=0.0, words="its win rate by the judge, less the control's, is {value}"
    ),
    _Measure(
        key="independent_check.difference",
        neutral=0.0,
        words="its win rate by an independent check, less the control's, is {value}",
    ),
)
"""The same against the policy trained on shuffled labels or truths."""


@dataclass(frozen=True, kw_only=True)
class OutcomeComparison:
    """One question with its answer and the figure behind it."""

    question: str
    answer: Answer
    why: str

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"question": self.question, "answer": self.answer, "why": self.why}

    @property
    def printed(self) -> str:
        """Return the answer as people read it."""
        return PRINTED[self.answer]

    def __str__(self) -> str:
        return f"{self.question} {self.printed}: {self.why}."


@dataclass(frozen=True, kw_only=True)
class EvaluationOutcome:
    """Answer of one evaluation about its policy."""

    stage: str
    comparisons: tuple[OutcomeComparison, ...]

    @property
    def answer(self) -> Answer:
        """Return the weaker of the answers: better than a control is what a method is worth."""
        answers = [item.answer for item in self.comparisons if item.answer != "not measured"]
        order: tuple[Answer, ...] = ("no", "not shown", "yes")
        return min(answers, key=order.index, default="not measured")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "stage": self.stage,
            "answer": self.answer,
            "comparisons": [item.to_json() for item in self.comparisons],
        }


def outcome_of(stage: str, results: Mapping[str, Any]) -> EvaluationOutcome:
    """Return what `results.json` of an evaluation says; an answer is yes or no only where its 95 % interval is clear.

    >>> figure = {"key": "exact_match.gain", "value": 0.5, "low": 0.4, "high": 0.6, "n": 200, "unit": "share"}
    >>> outcome_of("eval", {"figures": [figure]}).comparisons[0].why.partition(", n")[0].partition(", is ")[2]
    '+50.0 points (95 % interval +40.0 to +60.0 points'
    """
    figures = {str(figure.get("key")): figure for figure in results.get("figures") or ()}
    reward = "win_rate.policy" in figures
    nothing = "no figure but its own reward, which says nothing of quality" if reward else "no suite compares them"
    return EvaluationOutcome(
        stage=stage,
        comparisons=(
            _compared("Better than before?", START, figures, nothing),
            _compared("Better than the control?", CONTROL, figures, "no control was evaluated"),
        ),
    )


def _compared(
    question: str, measures: Sequence[_Measure], figures: Mapping[str, Mapping[str, Any]], nothing: str
) -> OutcomeComparison:
    for measure in measures:
        figure = figures.get(measure.key)
        if figure is None or any(
            not isinstance(figure.get(name), int | float) for name in ("value", "low", "high", "n")
        ):
            continue
        low, high, number = figure["low"], figure["high"], figure["n"]
        # A difference of two shares is in percentage points, a share in per cent.
        sign, unit = ("+", "points") if measure.neutral == 0 else ("", "%")
        ends = f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f} {unit}"
        sentence = measure.words.format(value=f"{100 * figure['value']:{sign}.1f} {unit}")
        why = f"{sentence} (95 % interval {ends}, n = {number:,})"
        if number < MIN_ROWS:
            why = f"{why}; at least {MIN_ROWS} rows are needed"
            return OutcomeComparison(question=question, answer="not shown", why=why)
        answer: Answer = "yes" if low > measure.neutral else "no" if high < measure.neutral else "not shown"
        return OutcomeComparison(question=question, answer=answer, why=why)
    return OutcomeComparison(question=question, answer="not measured", why=nothing)


def read_results(stage_dir: Path) -> Mapping[str, Any] | None:
    """Return what an evaluation published; None where nothing readable is there."""
    try:
        results = loads_json((stage_dir / "outputs" / RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return results if isinstance(results, dict) and isinstance(results.get("figures"), list) else None
