"""Names of a pipeline: rows and tokens of a data set or of an earlier stage, and the model behind a name."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypedDict

from charter.errors import DataError, Problem, SpecError
from charter.physics.identity_questions import IdentityWatch
from charter.plan.api_judge import ApiPrice
from charter.plan.phase import EndpointUse, Role, RolePhase
from charter.plan.risk import Assumption
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import MOST_BATCHED, QUANTISED, DataSpec, Project, Serving
from charter.spec.stage import VOTE_TOKENS, CritiqueStage, GenerateStage, LabelStage, PrepareStage
from charter.spec.stage_base import Stage

if TYPE_CHECKING:
    from charter.data.dataset import DataFacts

# -------- Rows and tokens that a name in the pipeline stands for: a data set, or what an earlier stage will write.

LARGE_VOCABULARY = 100_000
BYTES_PER_TOKEN = (
    # vocabulary at least, bytes per token, source
    (LARGE_VOCABULARY, 3.94, "Llama 3 paper, section 3.2: 3.94 characters per token of English (128k vocabulary)"),
    (16_000, 3.17, "Llama 3 paper, section 3.2: 3.17 characters per token for Llama 2's 32k vocabulary"),
    (0, 3.65, "measured: 2,048-token byte-level BPE trained on the shipped dialogues"),
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Rows of a data set, and the mean tokens of a row."""

    rows: float
    prompt_tokens: float
    response_tokens: float
    texts: float = 0.0
    """Conversations that the rows hold: a preference row has two."""

    @property
    def row_tokens(self) -> float:
        """Tokens of a row: the prompt and one answer."""
        return self.prompt_tokens + self.response_tokens


NOTHING = Corpus(rows=0.0, prompt_tokens=0.0, response_tokens=0.0)


def bytes_per_token(vocab_size: int | None) -> tuple[float, str]:
    """Bytes of English text per token of a model's vocabulary, and the source; of an unknown one, as of a large one.

    Other languages and code take more tokens; measure and set `mean_tokens` where it matters.
    """
    size = LARGE_VOCABULARY if vocab_size is None else vocab_size
    return next((value, source) for least, value, source in BYTES_PER_TOKEN if size >= least)


@dataclass(frozen=True, kw_only=True)
class Library:
    """Looks names up; collects what had to be assumed."""

    project: Project
    facts: "Mapping[str, DataFacts]"
    assumptions: list[Assumption]

    def corpus(self, names: tuple[str, ...], vocab_size: int | None) -> Corpus:
        """All of `names` together: rows add, tokens are the mean weighted by rows."""
        parts = [self._one(name, vocab_size) for name in names]
        rows = sum(part.rows for part in parts)
        if not rows:
            return NOTHING
        return Corpus(
            rows=rows,
            texts=sum(part.texts for part in parts),
            prompt_tokens=sum(part.rows * part.prompt_tokens for part in parts) / rows,
            response_tokens=sum(part.rows * part.response_tokens for part in parts) / rows,
        )

    def assume(self, name: str, value: str | float | int | bool | None, source: str, as_of: str = "") -> None:
        """Note an assumption once."""
        assumption = Assumption(name=name, value=value, source=source, as_of=as_of)
        if assumption not in self.assumptions:
            self.assumptions.append(assumption)

    def _one(self, name: str, vocab_size: int | None) -> Corpus:
        if name in self.project.data:
            return self._data_set(name, self.project.data[name], vocab_size)
        return self._made_by(self.project.pipeline[name], vocab_size)

    def _data_set(self, name: str, spec: DataSpec, vocab_size: int | None) -> Corpus:
        facts = self.facts.get(name)
        if facts is None:
            return self._declared(name, spec)
        per_token, source = bytes_per_token(vocab_size)
        prompt, response = facts.mean_prompt_bytes / per_token, facts.mean_response_bytes / per_token
        if spec.mean_tokens is not None:
            self.assume(f"data.{name}.mean_tokens", spec.mean_tokens, "charter.yaml, used instead of measuring")
            scale = spec.mean_tokens / (prompt + response) if prompt + response else 0.0
            prompt, response = prompt * scale, response * scale
        else:
            of = "not known, taken as large" if vocab_size is None else vocab_size
            self.assume(f"bytes per token, vocabulary {of}", per_token, source, "2024-07")
        return Corpus(
            rows=facts.rows,
            prompt_tokens=prompt,
            response_tokens=response,
            texts=max(facts.rows, facts.responses),
        )

    def _declared(self, name: str, spec: DataSpec) -> Corpus:
        if spec.rows is None or spec.mean_tokens is None:
            missing = " and ".join(
                key for key, value in (("rows", spec.rows), ("mean_tokens", spec.mean_tokens)) if value is None
            )
            raise DataError(
                f"data.{name}: {spec.path} is not there, so the planner cannot measure it\n"
                f"  put the file in place, or declare {missing}, for example\n"
                f"  {name}: {{path: {spec.path}, rows: 40_000, mean_tokens: 350}}"
            )
        self.assume(f"data.{name}.rows", spec.rows, f"charter.yaml; {spec.path} is not there")
        self.assume(f"data.{name}.mean_tokens", spec.mean_tokens, f"charter.yaml; {spec.path} is not there")
        rows = min(spec.rows, spec.limit) if spec.limit is not None else spec.rows
        half = spec.mean_tokens / 2
        return Corpus(rows=rows, prompt_tokens=half, response_tokens=half, texts=rows)

    def prompts(self, names: tuple[str, ...], vocab_size: int | None) -> Corpus:
        """`names` read as prompts: a declared file that is not there holds prompts only."""
        corpus = self.corpus(names, vocab_size)
        declared = [name for name in names if name in self.project.data and name not in self.facts]
        if len(declared) == len(names):
            return replace(corpus, prompt_tokens=corpus.row_tokens, response_tokens=0.0)
        return corpus

    def _made_by(self, stage: Stage, vocab_size: int | None) -> Corpus:
        made_by: Mapping[type[Stage], Callable[[Any, int | None], Corpus]] = {
            PrepareStage: self._prepared,
            GenerateStage: self._generated,
            CritiqueStage: self._revised,
            LabelStage: self._labelled,
        }
        if type(stage) not in made_by:
            raise DataError(f"a stage of kind {stage.kind} makes no data")
        return made_by[type(stage)](stage, vocab_size)

    def _prepared(self, stage: PrepareStage, vocab_size: int | None) -> Corpus:
        return self.corpus(stage.data, vocab_size)

    def _generated(self, stage: GenerateStage, vocab_size: int | None) -> Corpus:
        source = self.prompts(stage.prompts, vocab_size)
        if stage.makes == "prompts":
            rows = float(stage.num_prompts or 0)
            return Corpus(rows=rows, prompt_tokens=source.prompt_tokens, response_tokens=0.0, texts=rows)
        rows = float(stage.num_prompts or source.rows) * stage.answers_per_prompt
        return _answered(rows, min(source.prompt_tokens, stage.max_prompt_tokens), stage.expected_new_tokens)

    def _revised(self, stage: CritiqueStage, vocab_size: int | None) -> Corpus:
        source = self.prompts(stage.prompts, vocab_size)
        rows = float(stage.num_prompts or source.rows) * stage.revisions
        return _answered(rows, min(source.prompt_tokens, stage.max_prompt_tokens), stage.expected_new_tokens)

    def _labelled(self, stage: LabelStage, vocab_size: int | None) -> Corpus:
        existing = self.corpus(stage.candidates, vocab_size)
        prompts = self.prompts(stage.prompts, vocab_size)
        rows = existing.rows + stage.pairs
        if not rows:
            return existing
        prompt_tokens = min(prompts.prompt_tokens, stage.max_prompt_tokens)
        return Corpus(
            rows=rows,
            texts=2 * rows,
            prompt_tokens=(existing.rows * existing.prompt_tokens + stage.pairs * prompt_tokens) / rows,
            response_tokens=(existing.rows * existing.response_tokens + stage.pairs * stage.expected_new_tokens) / rows,
        )


def _answered(rows: float, prompt_tokens: float, new_tokens: float) -> Corpus:
    return Corpus(rows=rows, prompt_tokens=prompt_tokens, response_tokens=new_tokens, texts=rows)


# -------- From a name in the pipeline to the model behind it.


class Whereabouts(TypedDict):
    """The fields of a `Workload` that say which of its models are here and which are asked at an address."""

    roles: tuple[Role, ...]
    asked: tuple[EndpointUse, ...]
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
    stored: Mapping[str, str] = field(default_factory=dict)
    """Formats of the models' files, by entry of `models`; bf16 where nothing is said."""

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

    def problems(self) -> Iterator[Problem]:
        """Yield what the file asks of models that they cannot be."""
        yield from self._too_large_adapters()
        for name, spec in self.project.models.items():
            files = self.stored.get(name, "bf16")
            if spec.precision in QUANTISED and files != "bf16":
                message = f"the files of {spec.model} are in {files} already, and servers compute with them as they are"
                yield Problem(path=f"models.{name}.precision", message=message, hint="leave `precision` out")

    def _too_large_adapters(self) -> Iterator[Problem]:
        """Yield the stages whose adapters would be no smaller than the model they train, as far as it is known."""
        for name, stage in self.project.pipeline.items():
            adapter, start = getattr(stage, "adapter", None), getattr(stage, "policy", getattr(stage, "init", None))
            shape = None if adapter is None or start is None else self.architectures.get(self.base_name(str(start)))
            if adapter is not None and shape is not None and (refusal := adapter.too_large(shape.hidden_size)):
                yield Problem(path=f"pipeline.{name}.adapter.rank", message=refusal)

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
            stored="bf16" if trained else self._stored(name),
        )

    def _stored(self, name: str) -> str:
        """Return the format in which vLLM holds a model: as the file asks for, else as its files are."""
        if name not in self.project.models:
            return "bf16"  # a stage has trained it
        asked_for = QUANTISED.get(self.project.models[name].precision)
        return self.stored.get(name, "bf16") if asked_for is None else asked_for.stored

    def answering(self, role: str, name: str) -> Role | EndpointUse:
        """A model of which a stage wants answers alone: here, or at its address."""
        serving = self.project.serving.get(name)
        if serving is None or not serving.is_by_address:
            return self.role(role, name)
        shape = self.architectures.get(self.base_name(name))
        return EndpointUse(name=role, model=name, vocab_size=None if shape is None else shape.vocab_size)

    def voted(self, stage: LabelStage, questions: tuple[RolePhase, ...]) -> tuple[RolePhase, ...]:
        """Return questions to a judge; as often as it votes, at the longest, where its address gives nothing else."""
        serving = self.project.serving.get(stage.judge)
        if not stage.votes or serving is None or not serving.is_by_address or serving.gives_log_probabilities:
            return questions
        new = float(VOTE_TOKENS)
        return tuple(
            replace(item, work="generate", steps=item.steps * stage.votes, new_tokens=new) for item in questions
        )

    def whereabouts(self, *roles: Role | EndpointUse, may_choose: bool = True) -> Whereabouts:
        """Return which of a stage's models are here, which at an address, which may be either, and what that charges.

        Where the plan may not choose, what may be either is here.
        """
        elsewhere = tuple(role for role in roles if isinstance(role, EndpointUse))
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
        every=MOST_BATCHED if serving.batch and serving.canary_every else serving.canary_every,
        servers=1 + len(serving.also_endpoints),
        by_text=not serving.gives_log_probabilities,
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
        batch_discount=1.0 - serving.batch_price if serving.batch else 0.0,
        by_batch=serving.batch,
        thinking_tokens=float(serving.thinking_tokens),
    )
