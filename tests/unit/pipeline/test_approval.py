"""An approval opens the stage that it was given for, under the fingerprint that was looked at, and no other."""

import json

import pytest

from charter.engines.project import load_project
from charter.errors import DataError
from charter.run.approval import approve, read_approval, waits_for_approval
from charter.run.graph import build_pipeline

PROJECT = """\
name: n
models: {base: meta-llama/Llama-3.1-8B}
data: {d: d.jsonl}
pipeline:
  sft: {kind: sft, init: base, data: d, steps: 1, needs_approval: true}
"""


@pytest.fixture
def stage(tmp_path):
    (tmp_path / "charter.yaml").write_text(PROJECT)
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "d.jsonl").write_text(json.dumps({"id": "r", "messages": turns}) + "\n")
    return build_pipeline(load_project(tmp_path), tmp_path).stages["sft"]


def edit(root, **changes):
    """Change what the one approval says, under the name that it has."""
    (path,) = root.rglob("approvals/*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_given_approval_opens_the_stage(stage, tmp_path):
    assert waits_for_approval(stage, tmp_path)
    given = approve(stage, tmp_path, note="looked at", by="me")
    assert read_approval(stage, tmp_path) == given
    assert (given.stage, given.fingerprint) == ("sft", stage.asked_fingerprint)
    assert not waits_for_approval(stage, tmp_path)


def test_an_approval_of_another_fingerprint_or_stage_is_refused(stage, tmp_path):
    approve(stage, tmp_path)
    # The file's name holds 16 digits of the fingerprint; the rest is only inside.
    beginning = stage.asked_fingerprint[:16]
    for wrong in ({"fingerprint": beginning.ljust(64, "0")}, {"fingerprint": ""}, {"stage": "another"}):
        edit(tmp_path, **wrong)
        with pytest.raises(DataError, match="approves something else than its name says"):
            waits_for_approval(stage, tmp_path)
        edit(tmp_path, stage="sft", fingerprint=stage.asked_fingerprint)
    assert not waits_for_approval(stage, tmp_path)
