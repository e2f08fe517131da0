"""A very small real model, real conversations of our own, and a stage directory without a runner."""

from dataclasses import replace
from pathlib import Path

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Pair, Turn
from charter.models.chat import train_tokenizer
from charter.models.language_model import LanguageModel, new_language_model
from charter.spec.architecture import Architecture

ARCHITECTURE = Architecture(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=64,
    vocab_size=512,
    tied_embeddings=True,
    max_position_embeddings=256,
)
TOPICS = ("tea", "bread", "rain", "chess", "maps", "birds", "soap", "trains")
TEXTS = [f"How do I learn about {topic}? Read a book about {topic} and ask a friend." for topic in TOPICS] * 4


def language_model(seed: int = 0) -> LanguageModel:
    """A llama of 40k parameters with a tokenizer trained on a few sentences."""
    return new_language_model(ARCHITECTURE, train_tokenizer(TEXTS, vocab_size=400), seed=seed)


def pairs() -> list[Pair]:
    """Preference pairs in which the longer answer was preferred."""
    return [
        Pair(f"p{i}", (Turn("user", f"How do I learn about {t}?"),), f"Read a book about {t}.", "No.", 0.9)
        for i, t in enumerate(TOPICS)
    ]


def stage_dir(path: Path, spec, inputs: dict[str, Path] | None = None, *, kinds=None, **changes) -> StageDir:
    """A stage directory with its job; `inputs` maps a role to the directory of a stage that made it."""
    known = {"reward": "preference_model", "judge": "judge", "data": "label", "pairs": "label", "prompts": "critique"}
    found = {
        role: (
            JobInput(
                name=role,
                role=role,
                source="stage",
                path=str(where),
                fingerprint="0" * 64,
                stage_kind=(known | (kinds or {})).get(role, "sft"),
            ),
        )
        for role, where in (inputs or {}).items()
    }
    job = Job(
        run="test",
        stage=spec.kind,
        kind=spec.kind,
        fingerprint="a" * 64,
        seed=7,
        spec=spec,
        inputs=found,
        constitution=None,
        frozen={"threads": 1, "device": "cpu"},
        keep_last=2,
    )
    path.mkdir(parents=True, exist_ok=True)
    write_job(path, replace(job, **changes))
    return StageDir(path)
