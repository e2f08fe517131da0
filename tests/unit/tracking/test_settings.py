"""The list `tracking:` of charter.yaml, and secrets by reference."""

import json

import pytest

from charter.engines.project import load_project
from charter.errors import SpecError, UsageError
from charter.spec.bind import project_yaml
from charter.spec.sections import MlflowSettings, WandbSettings, holds_password, trackers_of
from charter.tracking.base import Secrets, is_reference, read_secret

HEAD = """\
name: small
models: {base: openai-community/gpt2}
data: {chat: chat.jsonl}
pipeline: {sft: {kind: sft, init: base, data: chat}}
"""


def load(tmp_path, tracking, more=""):
    path = tmp_path / "charter.yaml"
    path.write_text(f"{HEAD}tracking: {tracking}\n{more}\n")
    return load_project(tmp_path)


def problems(tmp_path, tracking, more=""):
    with pytest.raises(SpecError) as caught:
        load(tmp_path, tracking, more)
    return str(caught.value)


def test_names_and_entries_may_be_mixed(tmp_path):
    project = load(tmp_path, "[jsonl, tensorboard, {mlflow: {uri: 'http://h:1'}, drain: 1m}, {wandb: {mode: offline}}]")
    found = {tracked.name: tracked for tracked in trackers_of(project.tracking)}
    assert list(found) == ["tensorboard", "mlflow", "wandb"]
    assert found["mlflow"].settings == MlflowSettings(uri="http://h:1")
    assert (found["mlflow"].drain_seconds, found["tensorboard"].drain_seconds) == (60.0, 30.0)
    assert found["wandb"].settings == WandbSettings(mode="offline")


def test_the_expanded_file_reads_back(tmp_path):
    project = load(tmp_path, "[jsonl, {mlflow: {uri: env:MLFLOW, weights: true}}]")
    (tmp_path / "charter.yaml").write_text(project_yaml(project))
    assert load_project(tmp_path) == project


@pytest.mark.parametrize(
    ("tracking", "told"),
    [
        ("[mlflo]", "did you mean 'mlflow'?"),
        ("[{mlflw: {}}]", "tracking[0].mlflw: unknown key 'mlflw'"),
        ("[{mlflow: {urk: x}}]", "tracking[0].mlflow.urk: unknown key 'urk'"),
        ("[{mlflow: {weights: 3}}]", "tracking[0].mlflow.weights: expected true or false"),
        ("[{mlflow: {}, wandb: {}}]", "names 2 trackers; every entry is one"),
        ("[{drain: 5s}]", "names 0 trackers"),
        ("[wandb, {wandb: {}}]", "wandb is named twice"),
        ("[{mlflow: {uri: 'localhost'}}]", "is not an address"),
        ("[{mlflow: {}, drain: -1}]", "drain"),
    ],
)
def test_what_cannot_work_is_told_with_its_place(tmp_path, tracking, told):
    assert told in problems(tmp_path, tracking)


@pytest.mark.parametrize(
    "tracking",
    [
        "[{mlflow: {uri: 'http://ann:hunter2secret@host:1'}}]",
        "[{mlflow: {uri: 'postgresql://host/db?password=hunter2secret'}}]",
        "[{mlflow: {password: hunter2secret}}]",
        "[{mlflow: {token: hunter2secret}}]",
        "[{wandb: {api_key: hunter2secret}}]",
        "[{wandb: {base_url: 'https://x:hunter2secret@host'}}]",
    ],
)
def test_a_secret_in_the_file_is_refused_without_being_shown(tmp_path, tracking):
    told = problems(tmp_path, tracking)
    assert "hunter2secret" not in told
    assert "not shown" in told


@pytest.mark.parametrize(
    ("metering", "told"),
    [
        ("{every: -1}", "metering.every"),
        ("{every: 0.01}", "metering.every"),
        ("{prometheus_port: 70000}", "metering.prometheus_port"),
        ("{power_usage_effectiveness: 0.5}", "metering.power_usage_effectiveness"),
    ],
)
def test_metering_has_ranges(tmp_path, metering, told):
    assert told in problems(tmp_path, "[]", f"metering: {metering}")


def test_passwords_in_addresses():
    assert holds_password("postgresql://u:p@h/d")
    assert not holds_password("postgresql://u@h:5432/d")
    assert not holds_password("sqlite:///a:b.db")


def test_secrets_come_from_the_environment_or_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", " value-of-key\n")
    (tmp_path / "key").write_text("key-of-file\n")
    assert read_secret("env:A_KEY", of="x") == "value-of-key"
    assert read_secret(f"file:{tmp_path / 'key'}", of="x") == "key-of-file"


@pytest.mark.parametrize("reference", ["env:NOBODY_SET_THIS", "file:/nowhere/key", "plain"])
def test_a_missing_secret_says_where_it_was_looked_for(reference):
    with pytest.raises(UsageError, match="the key"):
        read_secret(reference, of="the key of W&B")


def test_whatever_was_read_is_blotted_out(monkeypatch):
    secrets = Secrets()
    monkeypatch.setenv("ADDRESS", "http://ann:hunter2secret@host:5000")
    secrets.read("env:ADDRESS", of="the address")
    for text in ("connect to http://ann:hunter2secret@host:5000 failed", "password hunter2secret is wrong"):
        assert "hunter2secret" not in secrets.blotted(text)


def test_an_address_is_no_reference():
    assert [is_reference(text) for text in ("env:X", "file:/x", "file:///x", "http://x")] == [True, True, False, False]


def test_settings_are_plain_values(tmp_path):
    from dataclasses import asdict

    (tracked,) = trackers_of(load(tmp_path, "[{wandb: {api_key: env:KEY}}]").tracking)
    assert json.loads(json.dumps(asdict(tracked.settings)))["api_key"] == "env:KEY"
