"""From a name in the pipeline to the model behind it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from charter.errors import SpecError
from charter.physics.serving.api_judge import ApiPrice
from charter.physics.serving.identity_questions import IdentityWatch
from charter.plan.work.phase import Asked, Role
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.project import Project, Serving
from charter.spec.stage import PpoStage


class Whereabouts(TypedDict):
    """The fields of a `Workload` that say which of its models are here and which are asked at an address."""

    roles: tuple[Role, ...]
    asked: tuple[Asked, ...]
    remote: tuple[str, ...]
    either: tuple[str, ...]
    endpoints: Mapping[str, ApiPrice]
    watches: Mapping[str, IdentityWatch]


@dataclass(frozen=True, kw_only=True)
class Models:
    """Resolves names of models and of stages that make models."""

    project: Project
    architectures: Mapping[str, Architecture]
    """Of every entry of `models` that has one: those that are only reached by address may have none."""

    def base_name(self, name: str) -> str:
        """The entry of `models` that a name goes back to through the stages that trained it."""
        seen = [name]
        while seen[-1] not in self.project.models:
            stage = self.project.pipeline.get(seen[-1])
            parent = getattr(stage, "policy" if isinstance(stage, PpoStage) else "init", None)
            if parent is None or parent in seen:
                raise SpecError(f"{name!r} does not lead to a model: {' <- '.join(seen)}")
            seen.append(str(parent))
        return seen[-1]

    def architecture(self, name: str) -> Architecture:
        """The architecture behind a name; raises where it is needed of a model that is only reached by address."""
        base = self.base_name(name)
        if base in self.architectures:
            return self.architectures[base]
        raise SpecError(
            f"models.{base}: {self.project.models[base].model!r} is only reached by address "
            f"({self.project.serving[base].endpoint}), and no architecture of that name is known; {name!r} is needed "
            "here with its weights\n  give a catalog name, the path of a config.json, or an architecture"
        )

    def any_vocabulary(self) -> int | None:
        """The vocabulary of some model of the project: what tokens are counted with when no model reads them."""
        return self.architectures[min(self.architectures)].vocab_size if self.architectures else None

    def role(
        self,
        role: str,
        name: str,
        *,
        trained: bool = False,
        adapter: Adapter | None = None,
        scalar: bool = False,
    ) -> Role:
        """A model in a stage, with its weights."""
        return Role(
            name=role,
            architecture=self.architecture(name),
            model=name,
            trained=trained,
            scalar_head=scalar,
            adapter=adapter if trained else None,
        )

    def answering(self, role: str, name: str) -> Role | Asked:
        """A model of which a stage wants answers alone: here, or at its address."""
        serving = self.project.serving.get(name)
        if serving is None or not serving.is_by_address:
            return self.role(role, name)
        shape = self.architectures.get(self.base_name(name))
        return Asked(name=role, model=name, vocab_size=None if shape is None else shape.vocab_size)

    def whereabouts(self, *roles: Role | Asked, may_choose: bool = True) -> Whereabouts:
        """Return which of a stage's models are here, which at an address, which may be either, and what that charges.

        Where the plan may not choose, what may be either is here.
        """
        elsewhere = tuple(role for role in roles if isinstance(role, Asked))
        here = tuple(role for role in roles if isinstance(role, Role))
        either = tuple(role for role in here if may_choose and self._may_be_either(role.model))
        models = {role.name: role.model for role in elsewhere} | {role.name: role.model for role in either}
        return Whereabouts(
            roles=here,
            asked=elsewhere,
            remote=tuple(role.name for role in elsewhere),
            either=tuple(role.name for role in either),
            endpoints={name: _api_price(self.project.serving[model]) for name, model in models.items()},
            watches={model: _watch(self.project.serving[model]) for model in models.values()},
        )

    def _may_be_either(self, name: str) -> bool:
        serving = self.project.serving.get(name)
        return serving is not None and serving.endpoint is not None and serving.mode == "auto"


def _watch(serving: Serving) -> IdentityWatch:
    return IdentityWatch(
        every=serving.canary_every,
        servers=1 + len(serving.also_endpoints),
        by_text=serving.log_probabilities == "none",
    )


def _api_price(serving: Serving) -> ApiPrice:
    prices = serving.token_prices
    return ApiPrice(
        input_usd_per_million=None if prices is None else prices[0],
        output_usd_per_million=None if prices is None else prices[1],
        cached_input_usd_per_million=serving.cached_input_usd_per_million_tokens,
        cached_share=serving.cached_prompt_share,
        requests_per_minute=serving.requests_per_minute,
        tokens_per_minute=serving.tokens_per_minute,
        concurrency=float(serving.concurrency),
    )
