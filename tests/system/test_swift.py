"""The bucket as a place, against a real object store that knows no conditional writes (Swift's S3 interface)."""

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from place_contract import check_place
from sft_job import write_sft_job
from swift_server import ACCESS, SECRET, SwiftServer, is_installed

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.store.copy import Copies, Objects
from charter.artifacts.store.maintenance import Replicator, Restorer
from charter.artifacts.store.s3 import S3Place

pytestmark = pytest.mark.skipif(
    not is_installed(), reason="needs swift-proxy, -account, -container, -object, memcached"
)


@pytest.fixture(scope="module")
def swift():
    with tempfile.TemporaryDirectory(prefix="charter-swift-") as directory:
        server = SwiftServer(directory=Path(directory))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def place(swift, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": swift.address,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    found = S3Place("s3://results/charter")
    with contextlib.suppress(FileExistsError):
        found._files.call_s3("create_bucket", Bucket="results")
    return found


def test_a_swift_bucket_keeps_what_a_place_promises(place, tmp_path):
    check_place(place, tmp_path / "files")
    assert place._conditional is False, "Swift answers NotImplemented, and the place goes on without conditions"


def test_tags_are_refused_by_swift_which_is_told_of_once_and_copies_are_kept(place, tmp_path):
    told = []
    place = S3Place("s3://results/tagged", tell=told.append)
    assert place.put_new("new", b"one", tags={"charter:run": "demo"})
    assert not place.put_new("new", b"two", tags={"charter:run": "demo"})
    place.put("put", b"one", tags={"charter:run": "demo"})
    assert (place.get("new"), place.get("put"), place._conditional) == (b"one", b"one", False)
    assert len(told) == 1
    assert "refuses tags on what is written (HTTP 501" in told[0]


def test_large_files_go_in_parts_and_a_stage_comes_back(place, tmp_path):
    stage_dir = write_sft_job(tmp_path / "sft-aaaaaaaa")
    content = bytes(range(256)) * 4096 * 110
    StageDir(stage_dir).save_checkpoint(2, lambda out: (out / "w.bin").write_bytes(content) and None)
    copies = Copies(Objects(place), "swift")
    replicator = Replicator(copies, run_dir=tmp_path, stages={stage_dir: "a" * 64})
    assert list(replicator.copy_new()) == ["sft-aaaaaaaa/step-00000002"]
    assert copies.damage(copies.read("sft-aaaaaaaa", "step-00000002")) == []
    assert place.unfinished() == []
    shutil.rmtree(stage_dir)
    assert Restorer(copies, print).restore_stage("sft-aaaaaaaa", stage_dir, "a" * 64) == ["checkpoint 2"]
    assert (StageDir(stage_dir).latest_checkpoint().path / "w.bin").read_bytes() == content
