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
    assert "weight is the number 0, not a positive" in str(error.value)
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


def test_many_draws_differ_and_begin_with_the_single_draw():
    for row in range(40):
        drawn = THREE.draw_many(3, 7, "label", row)
        assert {item.id for item in drawn} == {"a", "b", "c"}
        assert drawn[0] == THREE.draw(7, "label", row)
        assert drawn[:2] == THREE.draw_many(2, 7, "label", row)


def test_the_second_draw_goes_by_the_weights_that_are_left():
    counts = Counter("".join(item.id for item in THREE.draw_many(2, 1, row)) for row in range(4000))
    # a first: 1/4, then b is 2/3 of what is left; standard deviation of the counts is below 24; five of them.
    assert counts["ab"] == pytest.approx(4000 / 4 * 2 / 3, abs=120)
    assert counts["ba"] == pytest.approx(4000 / 2 * 1 / 2, abs=120)


@pytest.mark.parametrize("count", [0, 4])
def test_more_principles_than_there_are_cannot_be_drawn(count):
    with pytest.raises(DataError, match="has 3; ask for 1 to 3"):
        THREE.draw_many(count, 7, "label")


BILLION_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
ONE = "  - {id: x, critique: a, revision: b, compare: c"
HOSTILE = {
    "aliases that unfold without end": BILLION_LAUGHS + HEADER + ONE + "}\n",
    "an alias of itself": HEADER + "  - &a [*a]\n",
    "a depth bomb of lists": HEADER + "  - " + "[" * 600 + "]" * 600 + "\n",
    "a depth bomb of mappings": HEADER + "  - " + "{a: " * 600 + "}" * 600 + "\n",
    "a key given twice": HEADER + ONE + ", id: y}\n",
    "an object to be made": HEADER + "  - !!python/object/apply:os.system [ls]\n",
    "a merge key": HEADER + ONE + ", <<: {id: y}}\n",
    "a weight that is not a number": HEADER + ONE + ", weight: .nan}\n",
    "a weight without end": HEADER + ONE + ", weight: .inf}\n",
    "a weight beyond every number": HEADER + ONE + ", weight: 1e400}\n",
    "tags that are one word": HEADER + ONE + ", tags: abc}\n",
    "half a character": HEADER + '  - {id: "\\ud800", critique: a, revision: b, compare: c}\n',
    "a control character": HEADER + "  - {id: \x00}\n",
    "a number with ten thousand digits": HEADER + ONE + ", weight: " + "9" * 10_000 + "}\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_yaml_is_refused_cleanly(tmp_path, text):
    path = tmp_path / "constitution.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=r"constitution\.yaml") as error:
        load_constitution(path)
    assert len(str(error.value)) < 3000
