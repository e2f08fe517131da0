"""What a place promises; the same checks run against moto in tests/integration/store and Swift in tests/system."""

import os

import pytest
from place_contract import check_place

from charter.artifacts.store.copy import open_place
from charter.artifacts.store.place import PlaceError
from charter.errors import DataError, UsageError


def test_a_directory_keeps_what_a_place_promises(place, tmp_path):
    check_place(place, tmp_path / "files")


def test_a_directory_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    place = open_place("file/inside", root=tmp_path)
    with pytest.raises(PlaceError, match="cannot be used now"):
        place.put("a/b", b"x")


def test_links_in_a_directory_are_not_followed(place, tmp_path):
    place.put("a/b", b"x")
    (tmp_path / "outside").write_text("secret")
    os.symlink(tmp_path / "outside", tmp_path / "second" / "a" / "link")
    with pytest.raises(DataError, match="is a link"):
        place.get("a/link")
    with pytest.raises(DataError, match="refused"):
        place.put("../outside", b"y")
    assert [item.key for item in place.listed("")] == ["a/b"]


def test_places_of_other_kinds_are_refused(tmp_path):
    with pytest.raises(UsageError, match="s3://bucket/path"):
        open_place("gopher://x", root=tmp_path)
    assert open_place("copies", root=tmp_path).where == str(tmp_path / "copies")
