"""500 hostile names, from those that once opened other projects' artifact stores; every one is refused everywhere."""

import itertools
import os
from urllib.parse import quote

import pytest

from charter.artifacts.checkpoints import damage
from charter.artifacts.record import damaged_output, read_record
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.whole_dir import below, open_below, read_sealed, write_sealed, wrong_name
from charter.errors import CharterError, DataError

# fmt: off
UP = [
    "../", "..\\", "..//", "./../", ".../../", "..;/../", "a/../../", "a/./../../", "..%2f", "%2e%2e/",
    "%252e%252e%252f", "..%c0%af", "%u002e%u002e/", "．．/", "‥/../", "..／", "．．／",
    "..∕../", "..%5c", "..%255c", "..%00/", "..\x00/",
    "..\n/", "..\t/", ".. /", " ../", "../\u202e", "..\u200b/", "a/..\x7f/", "..\u2028/",
]
TARGETS = ["etc/passwd", "etc/shadow", ".ssh/authorized_keys", "charter.yaml", "run/ledger.sqlite", "x"]
ROOTS = [
    "/", "//", "///", "C:/", "C:", "c:\\", "\\\\host\\share\\", "\\\\?\\C:\\", "\\\\.\\", "file:///", "s3://b/",
    "http://h/", "~\\", "\\", "/proc/self/root/", "/dev/fd/../", "//?/C:/", "/./", "/../",
]
DEVICES = [
    "CON", "con", "PRN", "AUX", "NUL", "nul.txt", "COM1", "com9.log", "LPT1", "lpt¹", "CONIN$", "CONOUT$", "NUL.tar.gz",
]
ODD = [
    "", ".", "..", "...", "a.", "a/", "/a", "a//b", "a/./b", "a/..", "a /b", " a", "a ", "a/ b", "a\x00", "a\x00.json",
    "a\rb", "a\x1b[2J", "a\x85", "a\u00adb", "\ufeffa", "a\ue000", "a\U000e0041", "a:b", "a:$DATA", "a::$INDEX",
    "\ud800", "a\udcff", "a" * 256, "é" * 128, "/".join(["ab"] * 400), "%2e%2e", "%2F", "a%00b", "%25%32%65",
    "a%20b", "ﬁle", "ｃon", "℀", "a\u2024\u2024/b", "①",
]
PLAIN = [
    "a", "model/config.json", "state/step-00000012/__0_0.distcp", ".metadata", "a-b_c.d/E", "ünïcode/文件.json", "..a",
    "a..b", "batches/00000001-0123456789abcdef.jsonl", "a b", "console", "com10", "100%",
]
# fmt: on


def hostile() -> list[str]:
    """Every way up or out, to every target, plain and encoded once or twice."""
    outside = [up * times + target for up, target, times in itertools.product(UP, TARGETS, (1, 3))]
    absolute = [root + target for root, target in itertools.product(ROOTS, TARGETS)]
    encoded = [quote(name, safe="") for name in absolute[:40]] + [
        quote(quote(n, safe=""), safe="") for n in absolute[:40]
    ]
    devices = [prefix + name for prefix, name in itertools.product(("", "model/"), DEVICES)]
    return list(dict.fromkeys([*outside, *absolute, *encoded, *devices, *ODD]))


NAMES = hostile()


def test_there_are_at_least_500_hostile_names():
    assert len(NAMES) >= 500


def test_every_hostile_name_is_refused_in_words(tmp_path):
    for name in NAMES:
        assert wrong_name(name), ascii(name)
        for use in (below, open_below):
            with pytest.raises(DataError, match="is refused as the name of a file below") as caught:
                use(tmp_path, name)
            assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PLAIN)
def test_plain_names_are_taken(tmp_path, name):
    assert below(tmp_path, name) == tmp_path / name


def test_links_devices_and_pipes_are_not_opened(tmp_path):
    (tmp_path / "outside").write_text("secret")
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real" / "f").write_text("fine")
    os.symlink(tmp_path / "outside", root / "link")
    os.symlink(tmp_path, root / "dir")
    os.symlink(root / "real", root / "inner")
    os.mkfifo(root / "pipe")
    for name in ("link", "dir/outside", "inner/f", "pipe", "real"):
        with pytest.raises(DataError):
            open_below(root, name)
    with open_below(root, "real/f") as file:
        assert file.read() == b"fine"
    with pytest.raises(FileNotFoundError):
        open_below(root, "real/gone")


def test_a_link_that_appears_after_the_look_is_not_followed(tmp_path, monkeypatch):
    from charter.artifacts import whole_dir

    (tmp_path / "outside").write_text("secret")
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)

    def look_then_swap(where, relative):
        (root / "d").rmdir()
        os.symlink(tmp_path, root / "d")
        return where / relative

    monkeypatch.setattr(whole_dir, "below", look_then_swap)
    with pytest.raises(DataError, match="cannot be read"):
        open_below(root, "d/outside")


def test_manifests_and_records_with_hostile_names_are_refused(make_stage, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    stage_dir = make_stage()
    stage = StageDir(stage_dir)
    stage.save_checkpoint(1, lambda out: (out / "w").write_bytes(b"x") and None)
    stage.publish_outputs(lambda out: (out / "w").write_bytes(b"x") and None, step=1, target_step=1)
    manifest, record = stage_dir / "state" / "step-00000001" / "manifest.json", stage_dir / "record.json"
    good_manifest, good_record = read_sealed(manifest), read_sealed(record)
    sha256 = next(iter(good_record["outputs"].values()))
    for name in (name for name in NAMES[::5] if not any("\ud800" <= character <= "\udfff" for character in name)):
        write_sealed(manifest, {**good_manifest, "files": {name: {"bytes": 1, "sha256": sha256}}})
        write_sealed(record, {**good_record, "outputs": {name: sha256}})
        assert "refused" in damage(manifest.parent), ascii(name)
        assert "refused" in damaged_output(stage_dir, read_record(stage_dir), thorough=True), ascii(name)
    assert StageDir(stage_dir).latest_checkpoint() is None
    assert issubclass(DataError, CharterError)
