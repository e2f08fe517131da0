"""Figures of one preference model's calibration, from its log-odds and what humans chose."""

from collections.abc import Sequence

import numpy as np

from charter.evaluate import calibration
from charter.evaluate.figures import Figure, figure_of, mean, proportion
from charter.evaluate.intervals import Interval, of_mean
from charter.evaluate.logistic import sigmoid

PROBABILITY, HELD_OUT = "probability", "held-out human pairs"


def calibration_figures(key: str, name: str, margins: Sequence[float], targets: Sequence[float]) -> list[Figure]:
    """Figures of one model from its log-odds and what was true."""
    probabilities: list[float] = sigmoid(np.asarray(margins, dtype=np.float64)).tolist()
    confidences, right = calibration.sides(probabilities, targets)
    brier = [(probability - target) ** 2 for probability, target in zip(probabilities, targets, strict=True)]
    losses = calibration.log_losses(margins, targets)
    slope, ends = calibration.slope(margins, targets)
    told = f"; temperature {1 / slope:.2f}" if slope > 0 else "; no temperature would help: it ranks no better than not"
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
            f"1 is calibrated, below 1 is too sure of itself{told}",
        ),
        *_reliability(key, name, confidences, right),
    ]


def _error(key: str, name: str, confidences: Sequence[float], right: Sequence[float]) -> Figure:
    terms = calibration.gap_terms(confidences, right)
    found, chance = of_mean(terms), calibration.chance_gap(confidences)
    return figure_of(
        f"{key}.ece",
        f"Calibration error of {name}",
        sum(terms) / len(terms),
        Interval(low=max(found.low, 0.0), high=found.high),
        len(terms),
        PROBABILITY,
        f"normal, s/sqrt(n), {calibration.BINS} bins with their signs held",
        f"{HELD_OUT}; a calibrated model would come out near {chance:.3f} on so few pairs",
    )


def _reliability(key: str, name: str, confidences: Sequence[float], right: Sequence[float]) -> list[Figure]:
    """How often the model is right where it is so and so sure: the points of a reliability diagram."""
    return [
        proportion(
            f"{key}.bin.{100 * found.low:.0f}",
            f"{name} right where it is {100 * found.low:.0f} to {100 * found.high:.0f} % sure",
            found.right,
            note=f"mean confidence {100 * found.confidence:.1f} %",
            at=found.confidence,
        )
        for found in calibration.bins(confidences, right)
    ]
