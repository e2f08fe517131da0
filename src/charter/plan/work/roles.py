"""From a name in the pipeline to the model behind it."""

from collections.abc import Mapping
from dataclasses import dataclass

from charter.errors import SpecError
from charter.estimate.serving.api_judge import ApiPrice
from charter.plan.work.phase import Role
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.project import Project, Serving
from charter.spec.stage import PpoStage


@dataclass(frozen=True, kw_only=True)
class Models:
    """Resolves names of models and of stages that make models."""

    project: Project
    architectures: Mapping[str, Architecture]
    """Of every entry of `models`."""

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
        """The architecture behind a name."""
        return self.architectures[self.base_name(name)]

    def any_architecture(self) -> Architecture:
        """Some model of the project: what a data set's tokens are counted with when no model reads it."""
        if not self.architectures:
            raise SpecError("the project names no model; add one under models")
        return self.architectures[min(self.architectures)]

    def role(
        self,
        role: str,
        name: str,
        *,
        trained: bool = False,
        adapter: Adapter | None = None,
        scalar: bool = False,
    ) -> Role:
        """A model in a stage."""
        return Role(
            name=role,
            architecture=self.architecture(name),
            model=name,
            trained=trained,
            scalar_head=scalar,
            adapter=adapter if trained else None,
        )

    def remote(self, *roles: Role) -> tuple[str, ...]:
        """Names of the roles whose model is served by an endpoint."""
        return self._served("endpoint", roles)

    def either(self, *roles: Role) -> tuple[str, ...]:
        """Names of the roles whose model may be served here or by its endpoint."""
        return self._served("auto", roles)

    def endpoints(self, *roles: Role) -> dict[str, ApiPrice]:
        """Return the prices of the roles' endpoints, where they are given."""
        names = (*self._served("endpoint", roles), *self._served("auto", roles))
        prices = {role.name: _api_price(self.project.serving[role.model]) for role in roles if role.name in names}
        return {name: price for name, price in prices.items() if price is not None}

    def _served(self, mode: str, roles: tuple[Role, ...]) -> tuple[str, ...]:
        served = self.project.serving
        return tuple(
            role.name
            for role in roles
            if role.model in served and served[role.model].endpoint is not None and served[role.model].mode == mode
        )


def _api_price(serving: Serving) -> ApiPrice | None:
    if serving.usd_per_million_input_tokens is None or serving.usd_per_million_output_tokens is None:
        return None
    return ApiPrice(
        input_usd_per_million=serving.usd_per_million_input_tokens,
        output_usd_per_million=serving.usd_per_million_output_tokens,
        cached_input_usd_per_million=serving.cached_input_usd_per_million_tokens,
        cached_share=serving.cached_prompt_share,
        requests_per_minute=serving.requests_per_minute,
        tokens_per_minute=serving.tokens_per_minute,
        concurrency=float(serving.concurrency),
    )
