"""Generator of a rollout's answers, whoever computes them: this process, or an engine beside it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import Tensor

from charter.errors import StageError
from charter.inference.generate import Answers, SamplingSettings, generate
from charter.models.language_model import LanguageModel

NamedTensors = Iterable[tuple[str, Tensor]]
Weights = NamedTensors | Callable[[], NamedTensors]
"""Named tensors as `state_dict().items()` has them, or what makes them when they are wanted."""


class Generator(Protocol):
    """Samples answers to a fixed batch of prompts with known weights."""

    @property
    def version(self) -> int | None:
        """The policy version that is loaded; None before the first `update_weights`."""

    @property
    def is_exact(self) -> bool:
        """Return True if the same batch, seeds and weights give the same bits again; if not, answers must be stored."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        settings: SamplingSettings,
        prompt_width: int | None = None,
        version: int | None = None,
    ) -> Answers:
        """One answer per prompt; refused when `version` is given and is not the one that is loaded."""

    def update_weights(self, weights: Weights, *, version: int) -> None:
        """Take the weights of a policy version."""

    def close(self) -> None:
        """Give back what the generator holds; may be called twice."""


class NativeGenerator:
    """`generate` on the policy of this process: it has the newest weights by itself, and is repeatable bit for bit."""

    is_exact = True

    def __init__(self, policy: LanguageModel, *, tell: Callable[[], None] = lambda: None) -> None:
        self._policy, self._tell = policy, tell
        self.version: int | None = None

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        settings: SamplingSettings,
        prompt_width: int | None = None,
        version: int | None = None,
    ) -> Answers:
        """One answer per prompt by the weights as they are now."""
        check_version(version, self.version)
        return generate(
            self._policy, prompts, seeds=seeds, settings=settings, prompt_width=prompt_width, tell=self._tell
        )

    def update_weights(self, weights: Weights, *, version: int) -> None:
        """Note the version; the weights are the policy's own, so none are read."""
        self.version = version

    def close(self) -> None:
        """Nothing is held."""


def check_version(asked: int | None, loaded: int | None) -> None:
    """Refuse to sample by other weights than those asked for.

    >>> check_version(3, 3)
    """
    if asked is not None and asked != loaded:
        present = "no policy version yet" if loaded is None else f"policy version {loaded}"
        raise StageError(
            f"the rollout asks for policy version {asked}, the generator has {present}; call update_weights first"
        )
