"""Every kind of file that Charter keeps: a bit flipped anywhere, cut short, zeroed or longer, is noticed each time."""

import os
import random
import shutil
import sqlite3

import pytest
from sft_job import write_sft_job

from charter.artifacts.batch_files import BatchFiles, batch_paths
from charter.artifacts.batch_files import damage as batch_damage
from charter.artifacts.checkpoints import damage
from charter.artifacts.job import read_job
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.copy import Copies, Objects, copy_database, damage_of
from charter.artifacts.store.maintenance import Replicator, named_objects
from charter.artifacts.store.place import LocalPlace
from charter.errors import DataError

FLIPS = 40
"""Bits flipped in each file, at drawn places; every other kind of damage is done once."""
STAGE = "sft-aaaaaaaa"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A stage with everything that a stage can have, and its copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        top = tmp_path_factory.mktemp("whole")
        stage_dir = write_sft_job(top / STAGE)
        stage, content = StageDir(stage_dir), random.Random(7).randbytes(5000)
        stage.save_checkpoint(2, lambda out: (out / "w.bin").write_bytes(content) and None)
        records = [{"id": number, "text": "é" * 40} for number in range(20)]
        BatchFiles(stage_dir).write(1, "k", records=records, set_aside=[], totals={"x": 0.5}, tokens=1)
        stage.publish_outputs(lambda out: (out / "w.bin").write_bytes(content[::-1]) and None, step=6, target_step=6)
        live = sqlite3.connect(stage_dir / "calls.sqlite")
        live.execute("CREATE TABLE t (n INTEGER, x TEXT)")
        live.executemany("INSERT INTO t VALUES (?, ?)", [(number, "x" * 50) for number in range(200)])
        live.commit()
        live.close()
        replicator = Replicator(copies_of(top), run_dir=top, stages={stage_dir: "a" * 64})
        list(replicator.copy_new(flush=True, all_checkpoints=True))
    return top


def copies_of(top):
    return Copies(Objects(LocalPlace(top / "second")), "test")


def refuses(act):
    """What an act that raises says."""
    try:
        act()
    except DataError as error:
        return str(error)
    return None


def damage_there(top):
    lists, wrong = copies_of(top).of(STAGE)
    return wrong or [found for item in lists for found in copies_of(top).damage(item)] or None


KINDS = {
    "a checkpoint": (f"{STAGE}/state/step-00000002/w.bin", lambda t: damage(t / STAGE / "state/step-00000002")),
    "a manifest": (f"{STAGE}/state/step-00000002/manifest.json", lambda t: damage(t / STAGE / "state/step-00000002")),
    "a batch": (f"{STAGE}/batches/*.jsonl", lambda t: batch_damage(next(batch_paths(t / STAGE)))),
    "a record": (f"{STAGE}/record.json", lambda t: refuses(lambda: read_record(t / STAGE))),
    "a job": (f"{STAGE}/job.json", lambda t: refuses(lambda: read_job(t / STAGE))),
    "outputs": (f"{STAGE}/outputs/w.bin", lambda t: damaged_output(t / STAGE, read_record(t / STAGE), thorough=True)),
    "a copied object": ("second/objects/*/*", damage_there),
    "a list of copies": (f"second/copies/test/{STAGE}/[!s]*.json", damage_there),
    "a list that the collector reads": (
        f"second/copies/test/{STAGE}/*.json",
        lambda t: refuses(lambda: named_objects(LocalPlace(t / "second"))),
    ),
}


def ways(content, seed):
    """The file with a bit flipped at drawn places, cut, longer, zeroed in part, and with its halves exchanged."""
    draw = random.Random(seed)
    for _ in range(FLIPS):
        place = draw.randrange(len(content) * 8)
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        yield bytes(flipped)
    half = len(content) // 2
    yield from (b"", content[:1], content[:half], content[:-1], content + b"\n", content + b"\0")
    yield from (bytes(len(content)), content[:half] + bytes(len(content) - half), content[half:] + content[:half])


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_noticed_every_time(whole, kind, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    pattern, look = KINDS[kind]
    assert not look(whole)
    paths = sorted(whole.glob(pattern))
    assert paths
    for path in paths[:4]:
        good = path.read_bytes()
        for number, bad in enumerate(way for way in ways(good, kind) if way != good):
            path.write_bytes(bad)
            assert look(whole), f"{path.name}: damage {number} was not noticed"
        path.write_bytes(good)
    assert not look(whole)


def test_a_damaged_database_is_not_copied(whole, tmp_path):
    """SQLite's own check looks at structure; a flipped letter of a text is noticed in the copy, which has a hash."""
    content = (whole / STAGE / "calls.sqlite").read_bytes()
    path = tmp_path / "calls.sqlite"
    for bad in (content[: len(content) // 2], content[:4096] + bytes(4096) + content[8192:], b"x" * len(content)):
        path.write_bytes(bad)
        assert damage_of(path)
        assert refuses(lambda: copy_database(path, tmp_path / "copy"))
        (tmp_path / "copy").unlink(missing_ok=True)
    shutil.copyfile(whole / STAGE / "calls.sqlite", path)
    assert damage_of(path) is None
    copy_database(path, tmp_path / "copy")
    assert damage_of(tmp_path / "copy") is None
