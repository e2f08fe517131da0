"""The suite `pm_calibration`: whether a preference model's probabilities are those of being right, on human pairs.

P(chosen beats rejected) = sigmoid(score difference), in the model's raw scores, as it was trained (Bradley-Terry). A
reward that is right but too sure of itself is one that PPO follows too far.
"""

from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure
from charter.evaluate.pm_calibration_figures import calibration_figures


def pm_calibration(bench: Bench) -> list[Figure]:
    """Calibration of every preference model of the stage on the held-out pairs."""
    pairs = [(pair.prompt, pair.chosen, pair.rejected) for pair in bench.pairs]
    targets = [pair.chosen_probability for pair in bench.pairs]
    reward = bench.job.only("reward").name if bench.has("reward") else None
    found = []
    for name, scorer in bench.scorers.items():
        scale = float(scorer.settings["score_deviation"])
        margins = [margin * scale for margin in bench.margins(scorer, pairs)]
        key = f"pm_calibration.{'reward' if name == reward else f'also.{name}'}"
        found += calibration_figures(key, f"preference model {name}", margins, targets)
    return found
