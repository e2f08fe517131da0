"""The rows of a role over all its data sets, with one count of what was left out."""

import json

import pytest

from charter.artifacts.job import Job, JobInput, stage_rows
from charter.data.dataset import read_pairs, read_prompts
from charter.errors import DataError
from charter.spec.project import DataSpec
from charter.spec.stage import SftStage


@pytest.fixture
def job(tmp_path):
    def make(**policies):
        items = []
        for name, policy in policies.items():
            path = tmp_path / f"{name}.jsonl"
            rows = [json.dumps({"id": f"{name}{i}", "prompt": "" if i == 1 else "Q"}) for i in range(3)]
            path.write_text("\n".join(rows))
            data = DataSpec(path=path.name, on_bad_row=policy)
            items.append(
                JobInput(name=name, role="prompts", source="data", path=str(path), fingerprint="0" * 64, data=data)
            )
        spec = SftStage(init="base", data=("a",))
        return Job(
            run="r",
            stage="s",
            kind="sft",
            fingerprint="f",
            seed=1,
            spec=spec,
            inputs={"prompts": tuple(items)},
            constitution=None,
            frozen={},
            keep_last=1,
        )

    return make


def test_rows_of_data_sets_keep_order_and_bad_ones_are_counted(job):
    rows, skipped = stage_rows(job(a="skip", b="skip"), "prompts", read_prompts)
    assert [row.id for row in rows] == ["a0", "a2", "b0", "b2"]
    assert (skipped.count, len(skipped.reasons)) == (2, 2)


def test_each_data_set_has_its_own_policy(job):
    with pytest.raises(DataError, match=r"b\.jsonl:2: `prompt` must be a text"):
        stage_rows(job(a="skip", b="fail"), "prompts", read_prompts)


def test_a_role_without_data_has_no_rows(job):
    assert stage_rows(job(a="skip"), "pairs", read_pairs)[0] == []
