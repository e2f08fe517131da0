"""The coefficient of the KL penalty, fixed or adapted to a target."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass
class KlController:
    """beta of the KL penalty; moves towards a target KL per answer when there is one.

    e = clip(KL / target - 1, -0.2, 0.2);  beta <- beta (1 + e n / horizon) after n answers.
    Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2.

    >>> controller = KlController(coefficient=0.1, target=6.0, horizon=100)
    >>> controller.update(kl_nats=12.0, answers=10); round(controller.coefficient, 6)
    0.102
    """

    STATE: ClassVar[tuple[str, ...]] = ("coefficient",)

    coefficient: float
    target: float | None
    horizon: int

    def update(self, *, kl_nats: float, answers: int) -> None:
        """Adapt to the mean KL per answer of the last rollout."""
        if self.target is None:
            return
        error = min(max(kl_nats / self.target - 1, -0.2), 0.2)
        self.coefficient *= 1 + error * answers / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.coefficient = float(state["coefficient"])
