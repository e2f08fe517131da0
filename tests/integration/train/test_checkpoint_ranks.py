"""Sharded checkpoints of several real processes."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
THOROUGH = pytest.mark.thorough

import tiny
from checkpoint_ranks import digests, load, make_state, reshard_of, run_ranks

from charter.models.ranks import Ranks
from charter.spec.stage import SftStage

SPEC = SftStage(init="base", data=("chat",), steps=6)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tiny.stage_dir(tmp_path / "stage", SPEC).path


def shards(directory: Path, step: int) -> set[str]:
    """The processes whose files a checkpoint has."""
    names = os.listdir(directory / "state" / f"step-{step:08d}")
    return {name.split("_")[2] for name in names if name.startswith("__")}


@pytest.mark.parametrize(
    ("kind", "world", "mode"),
    [
        ("fsdp2", 3, "async"),
        pytest.param("ddp", 2, "sync", marks=THOROUGH),
        pytest.param("tp", 4, "async", marks=THOROUGH),
        pytest.param("offloaded", 2, "async", marks=THOROUGH),
    ],
)
def test_a_sharded_state_comes_back_bit_for_bit_at_the_same_and_at_other_sizes(directory, kind, world, mode):
    told = run_ranks(world, "save", directory, kind=kind, mode=mode)
    assert shards(directory, 2) == {str(rank) for rank in range(world)}
    same = run_ranks(world, "load", directory, kind=kind, go_on=3)
    for rank in range(world):
        assert same[rank] == {"step": 2, "saved": told[0]["saved"], "later": told[0]["later"]}
    refused = load(directory, Ranks(), kind="plain")
    assert f"written by {world} processes, and this stage has 1" in refused["error"]
    reshard_of(directory)
    assert load(directory, Ranks(), kind="plain")["saved"] == told[0]["saved"]
    if kind == "tp":
        assert run_ranks(2, "load", directory, kind="fsdp2")[1]["saved"] == told[0]["saved"]


def test_after_shrinking_no_shard_of_the_larger_group_is_there_and_damage_falls_back(directory):
    told = run_ranks(3, "save", directory, kind="fsdp2", mode="sync")
    refused = run_ranks(2, "load", directory, kind="fsdp2")
    assert all("--reshard" in result["error"] for result in refused)
    reshard_of(directory)
    run_ranks(2, "save", directory, kind="fsdp2", mode="sync", steps=4)
    assert shards(directory, 4) == {"0", "1"}
    newest = directory / "state" / "step-00000004"
    shard = next(path for path in newest.iterdir() if path.name.startswith("__1"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(bytes(content))
    found = run_ranks(2, "load", directory, kind="fsdp2")
    assert [result["step"] for result in found] == [2, 2]
    assert found[1]["saved"] == told[0]["saved"]
    assert (directory / "state" / "step-00000004.damaged-1").is_dir()


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=THOROUGH)])
def test_when_one_process_has_no_room_all_fail_and_the_old_one_stays(directory, mode):
    for found in run_ranks(2, "fail_on_one", directory, mode=mode):
        assert found == ["disk full", ["step-00000001"]] * 2 + [["step-00000001", "step-00000002"]]


def test_the_tests_would_notice_another_state(directory):
    assert digests(make_state(Ranks(), "plain", 1)) != digests(make_state(Ranks(), "plain", 2))
