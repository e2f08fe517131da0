"""An object is what its name says, or it is refused."""

import pytest

from charter.artifacts.fingerprint import fact_of_chunks
from charter.artifacts.store.copy import object_key
from charter.errors import DataError

CONTENT = b"forty bytes of content that is kept once"
FACT = fact_of_chunks([CONTENT])


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"!"])
def test_an_object_of_another_size_is_written_again(copies, place, tmp_path, content):
    (tmp_path / "f").write_bytes(CONTENT)
    for add in (lambda: copies.objects.add(tmp_path / "f", FACT), lambda: copies.objects.add_content(CONTENT)):
        place.put(object_key(FACT.sha256), content)
        add()
        assert copies.objects.damage(FACT) is None


@pytest.mark.parametrize("content", [b"?" * len(CONTENT), CONTENT + b"!"])
def test_damaged_content_is_refused(copies, place, content):
    place.put(object_key(FACT.sha256), CONTENT)
    assert copies.objects.content(FACT) == CONTENT
    place.put(object_key(FACT.sha256), content)
    with pytest.raises(DataError):
        copies.objects.content(FACT)


@pytest.mark.parametrize("name", ["", "ab", "a" * 63, "a" * 65, "A" * 64, "../" + "a" * 61])
def test_what_is_no_sha256_names_no_object(name):
    with pytest.raises(DataError, match="is not a sha256"):
        object_key(name)
