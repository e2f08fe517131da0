"""The suite `pm_calibration`: whether a preference model's probabilities are those of being right, on human pairs.

P(chosen beats rejected) = sigmoid(score difference), in the model's raw scores, as it was trained (Bradley-Terry). A
reward that is right but too sure of itself is one that PPO follows too far.
"""

from collections.abc import Sequence

import numpy as np

from charter.evaluate import statistics
from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, figure_of, mean, proportion
from charter.evaluate.statistics import ConfidenceInterval, of_mean, sigmoid

PROBABILITY, HELD_OUT = "probability", "held-out human pairs"


def calibration_figures(key: str, name: str, margins: Sequence[float], targets: Sequence[float]) -> list[Figure]:
    """Figures of one model from its log-odds and what was true."""
    probabilities: list[float] = sigmoid(np.asarray(margins, dtype=np.float64)).tolist()
    confidences, right = statistics.sides(probabilities, targets)
    brier = [(probability - target) ** 2 for probability, target in zip(probabilities, targets, strict=True)]
    losses = statistics.log_losses(margins, targets)
    slope, ends = statistics.slope(margins, targets)
    remedy = (
        f"; temperature {1 / slope:.2f}" if slope > 0 else "; no temperature would help: it ranks no better than not"
    )
    return [
        _error(key, name, confidences, right),
        mean(f"{key}.confidence", f"Mean confidence of {name}", confidences, unit=PROBABILITY, note=HELD_OUT),
        mean(f"{key}.brier", f"Brier score of {name}", brier, unit=PROBABILITY, note="1/4 for a coin"),
        mean(f"{key}.log_loss", f"Log loss of {name}", losses, unit="nats", note="0.693 for a coin"),
        figure_of(
            f"{key}.slope",
            f"Calibration slope of {name}",
            slope,
            ends,
            len(margins),
            "log-odds per log-odds",
            "logistic regression, robust",
            f"1 is calibrated, below 1 is too sure of itself{remedy}",
        ),
        *_reliability(key, name, confidences, right),
    ]


def _error(key: str, name: str, confidences: Sequence[float], right: Sequence[float]) -> Figure:
    terms = statistics.gap_terms(confidences, right)
    gap, chance = of_mean(terms), statistics.chance_gap(confidences)
    return figure_of(
        f"{key}.ece",
        f"Calibration error of {name}",
        sum(terms) / len(terms),
        ConfidenceInterval(low=max(gap.low, 0.0), high=gap.high),
        len(terms),
        PROBABILITY,
        f"normal, s/sqrt(n), {statistics.BINS} bins with their signs held",
        f"{HELD_OUT}; a calibrated model would come out near {chance:.3f} on so few pairs",
    )


def _reliability(key: str, name: str, confidences: Sequence[float], right: Sequence[float]) -> list[Figure]:
    """Return the points of a reliability diagram: the share that is right in each bin of confidence."""
    return [
        proportion(
            f"{key}.bin.{100 * part.low:.0f}",
            f"{name} right where it is {100 * part.low:.0f} to {100 * part.high:.0f} % sure",
            part.right,
            note=f"mean confidence {100 * part.confidence:.1f} %",
            at=part.confidence,
        )
        for part in statistics.bins(confidences, right)
    ]


def pm_calibration(bench: Bench) -> list[Figure]:
    """Calibration of every preference model of the stage on the held-out pairs."""
    pairs = [(pair.prompt, pair.chosen, pair.rejected) for pair in bench.pairs]
    targets = [pair.chosen_probability for pair in bench.pairs]
    reward = bench.job.only("reward").name if bench.has("reward") else None
    figures = []
    for name, scorer in bench.scorers.items():
        scale = float(scorer.settings["score_deviation"])
        margins = [margin * scale for margin in bench.margins(scorer, pairs)]
        key = f"pm_calibration.{'reward' if name == reward else f'also.{name}'}"
        figures += calibration_figures(key, f"preference model {name}", margins, targets)
    return figures
