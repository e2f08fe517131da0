"""`tools/house.py`: each figure on a tree of a few lines."""

import pytest

import house

TREE = {
    "src/charter/__init__.py": '"""A package."""\n',
    "src/charter/top.py": "from charter.low.used import twice\n\ndef entry():\n    return twice(2)\n",
    "src/charter/low/__init__.py": "",
    "src/charter/low/used.py": "def twice(n):\n    from charter.low.helper import half\n    return half(4 * n)\n",
    "src/charter/low/helper.py": '''def half(number):
    """What is half of it."""
    made = number / 2
    def inner(kept):
        kept = kept + 1
        return kept
    return made if isinstance(number, SftStage) else inner(made)
''',
    "src/charter/names.py": 'class Row:\n    """Who."""\n\nclass Row2:\n    """Whatever."""\n    engine = "verl"\n',
    "src/charter/more.py": "import charter.top\n\nclass Row:\n    pass\n\nprint(charter.top.entry, Row)\n",
    "src/charter/engines/verl/mapping.py": 'NAME = "verl"\n',
    "tests/test_it.py": f"import time\n\ndef test_{'x' * 56}():\n    time.sleep(1)\n\ndef test_short():\n    pass\n",
}
LIMITS = {"limits": {"sliced": 1}, "waiting": {}, "public": []}


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_each_figure_counts_by_its_definition(tree):
    values = house.figures(tree)
    assert {name: figure.value for name, figure in values.items()} == {
        "lines": 28, "modules": 8, "one_importer": 3, "sliced": 2, "tiny_functions": 3, "dead": 2, "waiting": 0,
        "class_names": 1, "unpassed": 0, "banned_names": 2, "question_docstrings": 2, "stage_checks": 1, "twins": 0,
        "long_files": 0, "long_functions": 0, "bare": 3,
        "test_sleeps": 1, "long_test_names": 1, "names_verl": 1, "names_openrlhf": 0,
        "names_nemo_rl": 0, "names_trl": 0,
    }  # fmt: skip
    assert values["one_importer"].places == ("charter.low.helper", "charter.low.used", "charter.top")
    assert values["sliced"].places == ("charter.low.helper", "charter.top")
    assert values["class_names"].places == ("Row 2",)
    assert [place.split()[-1] for place in values["banned_names"].places] == ["made", "kept"]


def test_functions_that_differ_in_names_alone_are_twins(tree):
    line = (
        "    return sorted((item.split()[0], len(item)) for item in {0} if item.strip() and not item.startswith({1}))\n"
    )
    (tree / "src/charter/one.py").write_text("def first(rows, mark):\n" + line.format("rows", "mark"))
    (tree / "src/charter/two.py").write_text(
        'def second(lines, sign):\n    """Say."""\n' + line.format("lines", "sign")
    )
    (tree / "src/charter/three.py").write_text("def other(lines, sign):\n" + line.format("lines", "'#'"))
    assert house.figures(tree)["twins"].places == ("src/charter/two.py:1 second = src/charter/one.py:1 first",)


def test_a_parameter_that_no_caller_gives_is_unpassed(tree):
    (tree / "src/charter/call.py").write_text(
        "class Door:\n    def __init__(self, wide=1, high=2, clock=3):\n        self.open(4)\n\n"
        "    def open(self, far=0, fast=1, *, wait_seconds=2):\n        pass\n\n"
        "def taken(a, b=1):\n    pass\n\ndef handed_on(c=1):\n    pass\n\n"
        "Door(high=3)\ntaken(1)\nsorted([], key=handed_on)\n"
    )
    places = [place.partition(" ")[2] for place in house.figures(tree)["unpassed"].places]
    assert places == ["taken(b)", "__init__(wide)", "open(fast)"]
    (tree / "tools").mkdir()
    (tree / "tools/tool.py").write_text("from charter.call import Door, taken\n\ntaken(1, 2)\nDoor(**{}).open(1, 2)\n")
    assert house.figures(tree)["unpassed"].places == ()


def test_a_field_whose_default_nobody_replaces_is_unpassed(tree):
    """A value that is made anew for each object is its state, and a class that is handed on is built elsewhere."""
    (tree / "src/charter/call.py").write_text(
        "from dataclasses import dataclass, field, replace\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Options:\n    deep: int\n    wide: int = 1\n    high: int = 2\n"
        "    far: int = 3\n    seen: list = field(default_factory=list)\n\n"
        "@dataclass\nclass Open:\n    state: int = 0\n\n"
        "@dataclass(frozen=True)\nclass HandedOn:\n    part: int = 0\n\n"
        "replace(Options(deep=1, high=3), far=4)\nOpen()\nsorted([], key=HandedOn)\n"
    )
    places = [place.partition(" ")[2] for place in house.figures(tree)["unpassed"].places]
    assert places == ["Options.wide"]


def test_parameters_and_text_make_no_function_long(tree):
    options = "".join(f"    option_{number}: int = 0,\n" for number in range(80))
    steps = "    print(1)\n"
    text = f'def asked(\n{options}) -> None:\n    """Print."""\n{steps * 60}\n\ndef longer() -> None:\n{steps * 61}'
    (tree / "src/charter/long.py").write_text(text)
    assert house.figures(tree)["long_functions"].places == ("src/charter/long.py:146 longer",)


def test_public_definitions_without_text_are_bare(tree):
    text = (
        'class Open:\n    """A door."""\n\n    def go(self):\n        pass\n\n    def _turn(self):\n        pass\n\n'
        'def close():\n    """Close."""\n\n    def inner():\n        pass\n\n    return inner\n'
    )
    (tree / "src/charter/door.py").write_text(text)
    places = house.figures(tree)["bare"].places
    assert [place for place in places if "door" in place] == ["src/charter/door.py:4 go"]


def test_risen_figure_fails_and_fallen_one_is_named(tree):
    values = house.figures(tree, waiting=["names.Row", "names.Row2"])
    assert "sliced: 2, limit 1" in house.problems(values, LIMITS)[0]
    assert house.advice(values, LIMITS) == []
    roomy = {**LIMITS, "limits": {"sliced": 5}, "waiting": {"names.Row": "issue 22", "names.Row2": "issue 22"}}
    assert house.problems(values, roomy) == []
    assert house.advice(values, roomy) == ["sliced: lower its limit in tools/house_limits.toml from 5 to 2"]


def test_dead_code_fails_unless_it_waits(tree):
    values = house.figures(tree, waiting=["names.Row", "top.entry"])
    waiting = {**LIMITS, "limits": {}, "waiting": {"names.Row": "issue 22", "top.entry": "issue 19"}}
    assert house.problems(values, waiting) == [
        "dead: names.Row2 (nothing): use it or delete it",
        "dead: top.entry is used or gone: remove it from [waiting] in tools/house_limits.toml",
    ]


def test_check_exits_one_and_json_is_for_machines(tree, capsys):
    (tree / "tools").mkdir()
    (tree / "tools/house_limits.toml").write_text("public = []\n[limits]\nsliced = 1\n[waiting]\n")
    assert house.main([], tree) == 0
    assert house.main(["--check"], tree) == 1
    assert "limit 1" in capsys.readouterr().err
    assert house.main(["--json"], tree) == 0
    assert '"sliced": 2' in capsys.readouterr().out
    assert house.main(["--list", "sliced"], tree) == 0
    assert capsys.readouterr().out.split() == ["charter.low.helper", "charter.top"]
