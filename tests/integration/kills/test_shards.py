"""Several processes share the batches of a stage: the records are those of one process, whoever is killed."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from bench import defects_in, hashes_of, wait_then_kill
from layouts import THOROUGH, in_turn
from results import Case, record

from charter.artifacts.batch_files import batch_paths
from charter.artifacts.job import read_job, write_job

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KILLS = 20 if THOROUGH else 2


@pytest.mark.parametrize(("kind", "processes"), in_turn([("critique", 3), ("label", 2)]))
def test_shards_make_the_records_of_one_process(bench, undisturbed, kind, processes):
    reference, seconds = undisturbed(kind).outputs, undisturbed.seconds(kind)
    draws = random.Random(f"shards-{kind}")
    directory = bench.stage(kind, f"shards-{kind}", world_size=processes)
    kills = 0
    for _ in range(KILLS):
        if not wait_then_kill(bench.start(directory), draws.uniform(0, seconds), draws):
            break
        kills += 1
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert hashes_of(directory) == reference
    assert defects_in(directory) == []
    record(Case(test="shards", kind=kind, layout=f"{processes} shards", kills=kills, runs=1,
                mismatches=0, lost=0, doubled=0))  # fmt: skip


def test_a_lost_batch_is_made_again_alone_and_with_another_number_of_shards(bench, undisturbed):
    directory = bench.stage("critique", "shards-lost", world_size=2)
    assert bench.finish(directory, CHARTER_KILL="critique:outputs:12:before") != 0
    kept = {path: path.stat().st_mtime_ns for path in batch_paths(directory)}
    lost = list(kept)[4]
    lost.unlink()
    del kept[lost]
    write_job(directory, replace(read_job(directory), frozen={"threads": 1, "device": "cpu"}))
    assert bench.finish(directory) == 0, (directory / "log.txt").read_text()
    assert hashes_of(directory) == undisturbed("critique").outputs
    assert lost.exists()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_shards_run_as_jobs_of_their_own_one_after_the_other(bench, undisturbed):
    directory = bench.stage("critique", "shards-array")
    for rank, made in (("1", 6), ("0", 12)):
        command = [sys.executable, "-m", "charter.feedback.critique", "--stage-dir", str(directory)]
        done = subprocess.run(
            command, env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert len(list(batch_paths(directory))) == made
        assert (directory / "record.json").exists() == (rank == "0")
    assert hashes_of(directory) == undisturbed("critique").outputs
