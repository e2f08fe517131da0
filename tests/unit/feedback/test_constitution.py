from collections import Counter

import pytest

from charter.errors import DataError
from charter.feedback.constitution import Constitution, Principle, load_constitution

HEADER = "schema: charter.constitution/v1\nprinciples:\n"


def principle(id, weight=1.0):
    return Principle(id=id, critique="c", revision="r", compare="q", weight=weight)


THREE = Constitution(name="n", version="1", principles=(principle("a"), principle("b", 2.0), principle("c", 1.0)))


def test_the_draw_depends_on_seed_and_parts_alone():
    assert THREE.draw(7, "label", "row-1") == THREE.draw(7, "label", "row-1")
    drawn = [THREE.draw(7, "label", f"row-{row}", 1).id for row in range(40)]
    assert drawn != [THREE.draw(8, "label", f"row-{row}", 1).id for row in range(40)]
    assert drawn != [THREE.draw(7, "label", f"row-{row}", 2).id for row in range(40)]


def test_draws_are_the_ones_of_the_first_release():
    assert "".join(THREE.draw(7, "label", f"row-{row}").id for row in range(16)) == "ababcbbbabaccbbb"


def test_weights_are_respected():
    counts = Counter(THREE.draw(1, row).id for row in range(4000))
    # Standard deviation of the count of a half is 32; five of them.
    assert counts["b"] == pytest.approx(2000, abs=160)
    assert counts["a"] == pytest.approx(1000, abs=140)


def test_adding_a_principle_of_no_use_is_refused_with_all_problems(tmp_path):
    path = tmp_path / "constitution.yaml"
    path.write_text(
        HEADER + "  - {id: x, critique: a, revision: b, compare: c}\n"
        "  - {id: x, critique: a, revision: b, compare: c, weight: 0}\n"
        "  - {id: y, critique: a}\n  - {id: x, critique: a, revision: b, compare: c}\n"
    )
    with pytest.raises(DataError) as error:
        load_constitution(path)
    assert "weight 0" in str(error.value)
    assert "principle 3 lacks revision, compare" in str(error.value)
    assert "'x' is used twice" in str(error.value)


@pytest.mark.parametrize("text", ["", "schema: other\nprinciples: []\n", "a: [", HEADER + "  []\n"])
def test_what_is_not_a_constitution_is_refused(tmp_path, text):
    path = tmp_path / "constitution.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"constitution\.yaml"):
        load_constitution(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such constitution"):
        load_constitution(tmp_path / "none.yaml")
