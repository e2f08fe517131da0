"""The expanded text is the same project, written out."""

import pytest
import yaml

from charter.engines.project import load_project
from charter.spec.bind import project_yaml
from charter.templates.shipped import TEMPLATES, write_template

ODD = """
name: "007"
models: {base: openai/gpt2}
data: {"3": "3e4", chats: {path: "null", part: 1/2, mean_tokens: 3}}
resources: {labels: {team: "no", cost: "1e3", empty: ""}, use_spot: auto, price: $0.1}
deadline: 14d
tracking: []
notes: {sft: "two\\nlines: with a colon # and more"}
pipeline:
  sft: {kind: sft, init: base, data: ["3", chats], learning_rate: 1e-6, adapter: {rank: 8}, timeout: 90s,
        resources: {accelerators: "H100:8", zero: 3}}
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "charter.yaml"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_the_text_of_a_template_reads_back_as_the_same_project(template, tmp_path, path):
    write_template(template, tmp_path)
    project = load_project(path)
    path.write_text(project_yaml(project))
    assert load_project(path) == project


def test_odd_names_and_texts_survive(path):
    path.write_text(ODD)
    project = load_project(path)
    path.write_text(project_yaml(project))
    assert load_project(path) == project
    assert project.tracking == ()


def test_expanding_the_expanded_text_changes_nothing(path):
    path.write_text(ODD)
    text = project_yaml(load_project(path))
    path.write_text(text)
    assert project_yaml(load_project(path)) == text


def test_every_default_that_matters_is_written_out(path):
    path.write_text(ODD)
    stage = yaml.safe_load(project_yaml(load_project(path)))["pipeline"]["sft"]
    assert list(stage)[:3] == ["kind", "init", "data"]
    assert (stage["epochs"], stage["global_batch"], stage["schedule"]) == (1.0, 64, "cosine")


def test_overrides_are_in_the_text(path):
    path.write_text(ODD)
    assert "seed: 5\n" in project_yaml(load_project(path, overrides=["seed=5"]))
