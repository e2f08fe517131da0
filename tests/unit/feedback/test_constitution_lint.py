from importlib.resources import files

import pytest

from charter.feedback.constitution import lint, load_constitution, read_constitution_file

GOOD = {
    "id": "kind",
    "critique": "Say where the last answer is unkind.",
    "revision": "Rewrite the last answer so that it is kind.",
    "compare": "Which answer is kinder to the reader?",
}
OTHER = {
    "id": "brief",
    "critique": "Name every sentence that nobody would miss.",
    "revision": "Take out what can be spared.",
    "compare": "Which of the two wastes less of somebody's time?",
}


def found(*principles, **more):
    return [str(item) for item in lint({"schema": "x", "principles": list(principles), **more})]


def test_a_good_constitution_has_no_findings():
    assert found(GOOD, OTHER) == []


def test_the_shipped_constitution_has_none():
    path = files("charter.templates") / "data" / "principles.yaml"
    assert lint(read_constitution_file(path)) == []
    assert len(load_constitution(path).principles) >= 16


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"id": None}, "error: principle 1: lacks `id`"),
        ({"id": "a b"}, "warning: principle 1 (a b): the id has other characters"),
        ({"critique": None}, "error: principle 1 (kind): lacks `critique`"),
        ({"compare": "  "}, "error: principle 1 (kind): `compare` is empty"),
        ({"revision": "Rewrite {answer} kindly."}, "error: principle 1 (kind): `revision` still holds the placeholder"),
        ({"critique": "TODO"}, "still holds the placeholder 'TODO'"),
        ({"critique": "Say why <name> is unkind"}, "still holds the placeholder '<name>'"),
        ({"critique": "word " * 300}, "warning: principle 1 (kind): `critique` has 1,500 characters"),
        ({"compare": "Which answer is better?"}, "warning: principle 1 (kind): `compare` names no criterion"),
        ({"compare": "Please choose the best response."}, "names no criterion"),
        ({"weight": 0}, "error: principle 1 (kind): the weight '0' is not a positive number"),
        ({"weight": -1}, "is not a positive number"),
        ({"weight": True}, "is not a positive number"),
        ({"weight": "heavy"}, "is not a positive number"),
        ({"weight": float("nan")}, "is not a positive number"),
        ({"weight": 100}, "warning: principle 1 (kind): its weight makes it 98% of all draws"),
        ({"weight": 1e-9}, "so hardly ever drawn"),
        ({"tags": "harm"}, "error: principle 1 (kind): `tags` must be a list"),
        ({"tags": [3]}, "`tags` must be a list"),
        ({"critque": "x"}, "warning: principle 1 (kind): the field 'critque' is not read; did you mean 'critique'?"),
        ({"derived": ["compare"]}, "warning: principle 1 (kind): compare was made from the other wording"),
    ],
)
def test_each_fault_of_one_principle(changed, said):
    one = {key: value for key, value in {**GOOD, **changed}.items() if value is not None}
    third = {"id": "third", "critique": "Other text.", "revision": "Another.", "compare": "Which is drier?"}
    told = found(one, OTHER, third)
    assert any(said in line for line in told), told
    assert len([line for line in told if "brief" not in line]) == 1


def test_a_curly_text_that_is_no_placeholder_stays():
    assert found({**GOOD, "critique": "Does it use set notation like {1, 2, 3}?"}, OTHER) == []


def test_principles_that_say_the_same():
    assert found(GOOD, {**GOOD, "id": "again"}) == [
        "error: principle 2 (again): says the same as principle 1 (kind); keep one and give it the weight of both"
    ]
    assert "`compare` is that of" in found(GOOD, {**OTHER, "compare": GOOD["compare"]})[0]
    near = {"critique": GOOD["critique"], "revision": GOOD["revision"], "compare": "Which answer is kinder?"}
    assert "is nearly the same as principle 1 (kind)" in found(GOOD, {**near, "id": "nearly"})[0]
    assert found(GOOD, {**OTHER, "id": "kind"}) == ["error: file: the id 'kind' is used 2 times"]


def test_tags_that_look_like_slips():
    tagged = [{**OTHER, "id": f"p{n}", "tags": ["harmlessness"]} for n in range(2)]
    told = found({**GOOD, "tags": ["harmlesness"]}, *tagged)
    assert "warning: file: the tag 'harmlesness' is used once; did you mean 'harmlessness'?" in told
    assert "the tag 'tone' is not in the file's list `tags`" in found({**GOOD, "tags": ["tone"]}, tags=["harm"])[0]
    assert found({**GOOD, "tags": ["harm"]}, tags=["harm"]) == []


def test_what_is_not_a_principle():
    assert found() == ["error: file: has no principle"]
    assert found("be kind", GOOD)[0] == (
        "error: principle 1: is not a mapping of `id`, `critique`, `revision` and `compare`"
    )
    assert found(GOOD, authors="us") == ["warning: file: the field 'authors' is not read"]
