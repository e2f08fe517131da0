"""Rows and tokens that a name in the pipeline stands for: a data set, or what an earlier stage will write."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from charter.data.dataset import DataFacts
from charter.errors import DataError
from charter.plan.assumption import Assumption
from charter.spec.project import DataSpec, Project
from charter.spec.stage import CritiqueStage, GenerateStage, LabelStage, PrepareStage, Stage

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
    facts: Mapping[str, DataFacts]
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
        match stage:
            case PrepareStage():
                return self.corpus(stage.data, vocab_size)
            case GenerateStage(makes="prompts"):
                rows = float(stage.num_prompts or 0)
                source = self.prompts(stage.prompts, vocab_size)
                return Corpus(rows=rows, prompt_tokens=source.prompt_tokens, response_tokens=0.0, texts=rows)
            case GenerateStage():
                source = self.prompts(stage.prompts, vocab_size)
                rows = float(stage.num_prompts or source.rows) * stage.answers_per_prompt
                return _answered(rows, min(source.prompt_tokens, stage.max_prompt_tokens), stage.expected_new_tokens)
            case CritiqueStage():
                source = self.prompts(stage.prompts, vocab_size)
                rows = float(stage.num_prompts or source.rows) * stage.revisions
                return _answered(rows, min(source.prompt_tokens, stage.max_prompt_tokens), stage.expected_new_tokens)
            case LabelStage():
                return self._labelled(stage, vocab_size)
        raise DataError(f"a stage of kind {stage.kind} makes no data")

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
