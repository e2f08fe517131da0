"""A served model that is another one: refused by `charter run`, taken by `--accept-model`, told by `revision:`."""

import json

import pytest

pytest.importorskip("torch")

from fault_server import Behaviour, fault_server
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import CharterError
from charter.physics.identity_questions import QUESTIONS
from charter.run.graph import build_pipeline
from charter.run.staleness import states_of

pytestmark = pytest.mark.torch
FILE = """
name: revisions
models: {{judge: {{model: some-judge}}}}
constitution: constitution.yaml
data: {{pairs: pairs.jsonl}}
pipeline:
  first: {{kind: label, judge: judge, candidates: [pairs], rollout_batch: 4}}
  second: {{kind: label, judge: judge, candidates: [pairs], rollout_batch: 2}}
resources: {{infra: local, cpus: 1}}
serving: {{judge: {{endpoint: '{url}', api: completions, concurrency: 4{more}}}}}
"""
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: 'Is it kind?', revision: Make it kinder., compare: 'Which answer is kinder?'}
"""


@pytest.fixture
def project(tmp_path):
    """Write the project for a server; return a function that runs a command on it."""
    (tmp_path / "constitution.yaml").write_text(CONSTITUTION)
    rows = [
        {
            "id": f"{number}",
            "prompt": [{"role": "user", "content": "Tell me about rain."}],
            "chosen": [{"role": "assistant", "content": f"It is wet {number}."}],
            "rejected": [{"role": "assistant", "content": "No."}],
        }
        for number in range(8)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def serve(url, more=""):
        (tmp_path / "charter.yaml").write_text(FILE.format(url=url, more=more))

        def charter(*words):
            result = CliRunner().invoke(app, [*words, "-C", str(tmp_path)])
            error = result.exception if isinstance(result.exception, CharterError) else None
            assert result.exception is None or error is not None, result.exception
            return (error.exit_code, str(error)) if error else (result.exit_code, result.output)

        return charter

    serve.root = tmp_path
    return serve


def states(root):
    pipeline = build_pipeline(load_project(root / "charter.yaml"), root)
    return {name: state.state for name, state in states_of(pipeline).items()}


def labels(root, name):
    pipeline = build_pipeline(load_project(root / "charter.yaml"), root)
    return (pipeline.stages[name].directory / "outputs" / "records.jsonl").read_text()


def asked(server):
    return [prompt for prompt in server.prompts if prompt not in QUESTIONS]


def test_another_model_is_refused_until_it_is_accepted(project):
    with fault_server() as (url, _):
        assert project(url)("run", "--yes", "--only", "first")[0] == 0
    before = labels(project.root, "first")
    with fault_server(Behaviour(weights="other")) as (url, server):
        code, text = project(url)("run", "--yes")
        assert code != 0
        assert "charter run --accept-model judge" in text
        assert asked(server) == []
        assert states(project.root) == {"first": "done", "second": "failed"}

        code, text = project(url)("run", "--yes", "--accept-model", "judge")
        assert code == 0, text
        assert states(project.root) == {"first": "done", "second": "done"}
        assert labels(project.root, "first") == before, "what was done stays"
        requests = len(server.requests)
        assert "nothing to be done" in project(url)("run", "--yes")[1]
        assert len(server.requests) == requests
    with fault_server() as (url, server):
        # The first model again, in the place of the accepted one.
        (project.root / "pairs.jsonl").write_text((project.root / "pairs.jsonl").read_text().replace("wet", "cold"))
        assert project(url)("run", "--yes")[0] != 0
        assert asked(server) == []


def test_a_revision_in_the_file_is_another_model(project):
    with fault_server() as (url, _):
        charter = project(url, ", revision: a")
        assert charter("run", "--yes")[0] == 0
    with fault_server(Behaviour(weights="other")) as (url, server):
        charter = project(url, ", revision: b")
        assert states(project.root) == {"first": "pending", "second": "pending"}
        assert charter("run", "--yes")[0] == 0
        assert len(asked(server)) == 2 * 2 * 8


def test_only_endpoints_of_the_project_can_be_accepted(project):
    with fault_server() as (url, _):
        code, text = project(url)("run", "--yes", "--accept-model", "policy")
    assert code == 2
    assert "no endpoint of this project serves 'policy'; there are judge" in text
    assert not (project.root / "run" / "models.json").exists()
