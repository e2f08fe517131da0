"""Tiny real models, a constitution and a way to make a stage directory, for the tests of this directory."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.models.chat import train_tokenizer
from charter.models.language_model import (
    load_language_model,
    new_language_model,
)
from charter.models.preference import PreferenceModel, ScalarModel
from charter.spec.architecture import Architecture
from charter.spec.project import DataSpec

TOPICS = ["bread", "a garden", "the moon", "old maps", "a bicycle", "rain", "chess", "a letter", "glass", "tea"]
CONSTITUTION = """
schema: charter.constitution/v1
name: two
version: 1
principles:
  - {id: kind, critique: 'Is it kind?', revision: Make it kinder., compare: 'Which answer is kinder?'}
  - {id: short, critique: 'Is it short?', revision: Make it shorter., compare: 'Which answer is shorter?'}
"""


def tiny_architecture(**changes):
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 64}
    return Architecture(**{**sizes, "vocab_size": 320, "max_position_embeddings": 256, **changes})


@pytest.fixture(scope="session")
def tokenizer():
    texts = [f"Tell me about {topic}. Here is what I know about {topic}, and it is good." for topic in TOPICS]
    return train_tokenizer(texts, vocab_size=320)


@pytest.fixture(scope="session")
def models(tmp_path_factory, tokenizer):
    """Directories of three language models with random weights, large enough for their choices to differ."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("policy", "judge", "control")):
        language_model = new_language_model(tiny_architecture(), tokenizer, seed=seed)
        with torch.no_grad():
            for parameter in language_model.model.parameters():
                parameter.mul_(3 if parameter.dim() > 1 else 1)
        language_model.save(root / name)
    for seed, name in enumerate(("reward", "also")):
        language_model = load_language_model(root / "policy")
        scalar = ScalarModel(language_model)
        torch.nn.init.normal_(scalar.head.weight, generator=torch.Generator().manual_seed(seed))
        settings = {
            "pooling": "mean",
            "context": "last_turn",
            "seq_len": 96,
            "score_mean": 0.0,
            "score_deviation": 1.0,
        }
        PreferenceModel(scalar, language_model, settings).save(root / name)
    return root


@pytest.fixture
def policy(models):
    return load_language_model(models / "policy")


@pytest.fixture
def judge(models):
    return load_language_model(models / "judge")


def prompt_rows():
    return [
        {"id": f"p{index}", "prompt": [{"role": "user", "content": f"Tell me about {topic}."}]}
        for index, topic in enumerate(TOPICS)
    ]


def pair_rows(count=10, *, opening="Tell me about"):
    rows = []
    for index in range(count):
        topic = TOPICS[index % len(TOPICS)]
        rows.append(
            {
                "id": f"pair{index}",
                "prompt": [{"role": "user", "content": f"{opening} {topic}."}],
                "chosen": [{"role": "assistant", "content": f"Here is what I know about {topic} and {index}."}],
                "rejected": [{"role": "assistant", "content": f"It is good, {topic}. " * (1 + index % 3)}],
            }
        )
    return rows


@dataclass
class Workshop:
    """Makes stage directories whose inputs are files and model directories of one place."""

    root: Path
    models: Path

    def data(self, name, rows):
        path = self.root / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def stage(self, name, spec, *, data=(), **models):
        """A stage directory; `data` maps roles to files, the other arguments roles to model names."""
        path = self.root / name
        if not path.exists():
            path.mkdir()
            (self.root / "constitution.yaml").write_text(CONSTITUTION)
            write_job(path, self._job(spec, dict(data), models))
        return StageDir(path)

    def _job(self, spec, data, models):
        inputs = {role: (self._data_input(role, path),) for role, path in data.items()}
        for role, found in models.items():
            names = (found,) if isinstance(found, str) else found
            inputs[role] = tuple(
                JobInput(name=n, role=role, source="model", path=str(self.models / n), fingerprint=f"of-{n}")
                for n in names
            )
        return Job(
            run="run",
            stage=spec.kind,
            kind=spec.kind,
            fingerprint="f" * 64,
            seed=11,
            spec=spec,
            inputs=inputs,
            constitution=str(self.root / "constitution.yaml"),
            frozen={"threads": 1, "device": "cpu"},
            keep_last=2,
        )

    def _data_input(self, role, path):
        data = DataSpec(path=str(path))
        return JobInput(name=role, role=role, source="data", path=str(path), fingerprint="d", data=data)


@pytest.fixture
def workshop(tmp_path, models):
    return Workshop(tmp_path, models)


@pytest.fixture(autouse=True)
def one_thread():
    """Bits depend on the number of threads; deterministic kernels are put back after each test."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(False)


def published(stage):
    """The bytes of a stage's outputs."""
    return {path.name: path.read_bytes() for path in sorted(stage.outputs.iterdir())}
