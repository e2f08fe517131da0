import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from charter.artifacts import durable, faults, fingerprint
from charter.artifacts.fingerprint import is_disk_full
from charter.artifacts.whole_dir import publish_dir
from charter.errors import DataError


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if path.name.startswith((".tmp-", ".gc-"))]


def test_replaced_file_has_new_content_and_no_leftovers(tmp_path):
    durable.write_file(tmp_path / "a.txt", "old")
    durable.write_file(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_manifest_of_published_directory_has_every_sha256(tmp_path):
    def write(out: Path) -> None:
        (out / "sub").mkdir()
        (out / "sub" / "w.bin").write_bytes(b"weights")

    facts = publish_dir(
        tmp_path / "x" / "step",
        write,
        manifest=lambda files: json.dumps({"files": {n: f.sha256 for n, f in files.items()}}),
    )
    assert facts["sub/w.bin"].sha256 == hashlib.sha256(b"weights").hexdigest()
    assert facts["sub/w.bin"].bytes == 7
    manifest = json.loads((tmp_path / "x" / "step" / "manifest.json").read_text())
    assert manifest == {"files": {"sub/w.bin": hashlib.sha256(b"weights").hexdigest()}}


def test_private_modes_of_libraries_become_the_usual_ones(tmp_path):
    def write(out: Path) -> None:
        (out / "model.safetensors").write_bytes(b"x")
        (out / "model.safetensors").chmod(0o600)

    before = os.umask(0o022)
    try:
        publish_dir(tmp_path / "outputs", write)
    finally:
        os.umask(before)
    assert (tmp_path / "outputs" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_writer_that_fails_publishes_nothing_and_leaves_nothing(tmp_path):
    def write(out: Path) -> None:
        (out / "half").write_text("x")
        raise RuntimeError("defect")

    with pytest.raises(RuntimeError, match="defect"):
        publish_dir(tmp_path / "outputs", write)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_a_data_error_with_bytes_needed_and_free(tmp_path, error):
    def write(out: Path) -> None:
        (out / "half").write_bytes(b"x" * 4096)
        raise error

    with pytest.raises(DataError, match=r"disk full: .*outputs needs 4.0 KiB or more, .* are free") as caught:
        publish_dir(tmp_path / "outputs", write)
    assert caught.value.exit_code == 8
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_seen_behind_the_errors_that_it_caused():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    caused, context, other = RuntimeError("cannot save"), RuntimeError("while saving"), RuntimeError("defect")
    caused.__cause__, context.__context__, other.__context__ = full, caused, OSError(errno.EIO, "I/O error")
    assert is_disk_full(caused)
    assert is_disk_full(context)
    assert not is_disk_full(other)


def test_a_directory_that_cannot_fit_is_refused_before_it_is_written(tmp_path):
    written = []
    with pytest.raises(DataError, match="disk full"):
        publish_dir(tmp_path / "outputs", written.append, expected_bytes=2**62)
    assert written == []


def test_a_full_disk_leaves_the_old_file_intact(tmp_path, monkeypatch):
    durable.write_file(tmp_path / "a.txt", "old")
    faults.reset_count()
    monkeypatch.setenv("CHARTER_FAULT_AT", "1:enospc")
    with pytest.raises(DataError, match="disk full"):
        durable.write_file(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert leftovers(tmp_path) == []


def test_lines_are_appended_whole(tmp_path):
    durable.append_line(tmp_path / "m.jsonl", {"step": 1})
    durable.append_line(tmp_path / "m.jsonl", {"step": 2}, sync=True)
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_line_that_is_written_in_part_is_taken_back(tmp_path, monkeypatch):
    durable.append_line(tmp_path / "m.jsonl", {"step": 1})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
    with pytest.raises(DataError, match="disk full"):
        durable.append_line(tmp_path / "m.jsonl", {"step": 2})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1}\n'


@pytest.mark.parametrize(("number", "raised"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_a_hint_is_given_up_on_a_full_disk_and_only_there(tmp_path, monkeypatch, number, raised):
    durable.write_hint(tmp_path / "progress.json", {"step": 1})

    def fail(path, target):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "replace", fail)
    if raised:
        with pytest.raises(OSError, match=os.strerror(number)):
            durable.write_hint(tmp_path / "progress.json", {"step": 2})
    else:
        durable.write_hint(tmp_path / "progress.json", {"step": 2})
        assert leftovers(tmp_path) == []
    assert durable.read_json(tmp_path / "progress.json") == {"step": 1}


def test_what_is_not_a_number_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        durable.write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert os.listdir(tmp_path) == []


def test_missing_directories_are_made_and_those_that_are_there_stay(tmp_path):
    durable.make_dir(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "file").touch()
    durable.make_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "file").exists()


def test_sweep_removes_what_crashes_left_and_nothing_else(tmp_path):
    (tmp_path / ".tmp-step-1").mkdir()
    (tmp_path / ".tmp-step-1" / "half").write_text("x")
    (tmp_path / ".gc-step-0").mkdir()
    (tmp_path / "step-2").mkdir()
    durable.sweep(tmp_path)
    assert os.listdir(tmp_path) == ["step-2"]


@pytest.mark.parametrize("write", [durable.write_file, durable.write_hint])
def test_a_late_sweep_leaves_what_its_own_start_is_writing(tmp_path, monkeypatch, write):
    """A process beside rank 0 may write before rank 0 sweeps, if that one is slow to start."""
    monkeypatch.setenv("CHARTER_GROUP", "1-aaaa")
    old = durable.temporary_beside(tmp_path / "old")
    old.touch()
    monkeypatch.setenv("CHARTER_GROUP", "2-bbbb")

    def swept_before(rename):
        return lambda source, target: (durable.sweep(tmp_path), rename(source, target))

    monkeypatch.setattr(os, "rename", swept_before(os.rename))
    monkeypatch.setattr(Path, "replace", swept_before(Path.replace))
    write(tmp_path / "member-1.json", "{}")
    assert os.listdir(tmp_path) == ["member-1.json"]


def test_things_moved_aside_never_overwrite_each_other(tmp_path):
    for content in ("first", "second"):
        (tmp_path / "record.json").write_text(content)
        durable.move_aside(tmp_path / "record.json", "damaged")
    assert (tmp_path / "record.json.damaged-1").read_text() == "first"
    assert (tmp_path / "record.json.damaged-2").read_text() == "second"


def test_json_that_is_not_json_is_named(tmp_path):
    (tmp_path / "record.json").write_text('{"half": ')
    with pytest.raises(DataError, match=r"record\.json is not valid JSON"):
        durable.read_json(tmp_path / "record.json")


def test_failure_is_raised_during_removal_by_another_process(tmp_path, monkeypatch):
    """The processes of a stage that lost a peer clean up the same directory at once."""
    left = tmp_path / ".tmp-step"
    left.mkdir()
    monkeypatch.setattr(fingerprint, "files_under", lambda path: ["gone-meanwhile"])
    with (
        pytest.raises(RuntimeError, match="the cause"),
        fingerprint.disk_full_is_said(left, needed_bytes=0, clean=left),
    ):
        raise RuntimeError("the cause")
    assert not left.exists()
