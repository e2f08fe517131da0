"""`storage.ledger`: the address of a database, never its password."""

from dataclasses import replace

import pytest

from charter.spec.checks import check_project
from charter.spec.project import DataSpec, ModelSpec, Project, Storage
from charter.spec.stage import SftStage

PROJECT = Project(
    name="p",
    models={"base": ModelSpec(model="gpt2")},
    data={"chat": DataSpec(path="chat.jsonl")},
    pipeline={"sft": SftStage(init="base", data=("chat",))},
)


def problems(address):
    found = check_project(replace(PROJECT, storage=Storage(ledger=address)))
    return [problem for problem in found if problem.path == "storage.ledger"]


@pytest.mark.parametrize(
    "address",
    ["postgresql://db/charter", "postgresql://me@db.lab:5433/charter?sslmode=require", "postgresql:///charter", None],
)
def test_a_database_is_named_by_host_user_and_name(address):
    assert problems(address) == []


@pytest.mark.parametrize("address", ["postgresql://me:hunter2@db/charter", "postgresql://db/charter?password=hunter2"])
def test_a_password_is_refused_and_not_repeated(address):
    (problem,) = problems(address)
    assert "PGPASSFILE" in str(problem)
    assert "hunter2" not in str(problem)


@pytest.mark.parametrize("address", ["mysql://db/charter", "db/charter", "postgresql://db", "run/ledger.sqlite", ""])
def test_what_is_no_database_of_postgresql_is_refused(address):
    (problem,) = problems(address)
    assert "postgresql://HOST/DATABASE" in str(problem)
