"""Labels of axes: one unit for all, and never two ticks with one label. Run by Node, where there is one."""

import itertools
import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[3] / "src" / "charter" / "dashboard" / "static"
PROGRAM = """
globalThis.window = globalThis; globalThis.document = { addEventListener() {}, documentElement: {} };
globalThis.addEventListener = () => {};
require(process.argv[1]);
const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
const ticks = (values) => values.map((value) => ({ value }));
const out = cases.map(([unit, values]) => values.map((v) => CharterCharts.ticked(v, ticks(values), unit)));
const smooth = CharterCharts.smoothed([{ x: 1, y: 4 }, { x: 2, y: 4 }, { x: 3, y: 0 }], 0.5);
console.log(JSON.stringify({ out, smooth }));
"""


def node():
    if program := shutil.which("node"):
        return program
    spec = find_spec("playwright")
    inside = Path(spec.origin).parent / "driver" / "node" if spec and spec.origin else None
    return str(inside) if inside and inside.exists() else None


pytestmark = pytest.mark.skipif(node() is None, reason="Node is not here; the browser suite brings one")


def run(cases):
    done = subprocess.run(
        [node(), "-e", PROGRAM, str(STATIC / "charts.js")], input=json.dumps(cases), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def labels(unit, *values):
    return run([(unit, values)])["out"][0]


@pytest.mark.parametrize(
    ("unit", "values", "expected"),
    [
        ("", (0.25, 0.3, 0.35), ["0.25", "0.30", "0.35"]),
        ("", (0.6931470, 0.6931475, 0.6931480), ["0.6931470", "0.6931475", "0.6931480"]),
        ("", (0, 5_000, 10_000), ["0", "5 k", "10 k"]),
        ("", (0, 250, 500), ["0", "250", "500"]),
        ("seconds", (100, 200, 300), ["1.7 min", "3.3 min", "5.0 min"]),
        ("seconds", (60, 120, 180), ["1 min", "2 min", "3 min"]),
        ("bytes", (0, 2**29, 2**30), ["0", "0.5 GiB", "1.0 GiB"]),
        ("share", (0, 0.005, 0.01), ["0 %", "0.5 %", "1.0 %"]),
        ("usd", (0, 0.5, 1.0), ["$0", "$0.5", "$1.0"]),
        ("usd", (0, 5000, 10000), ["$0", "$5,000", "$10,000"]),
    ],
)
def test_ticks_are_told_apart_in_one_unit(unit, values, expected):
    assert labels(unit, *values) == expected


def test_no_two_ticks_have_one_label():
    """Every unit, step and number of ticks, from several beginnings: one call of Node for all."""
    units = ("", "bytes", "seconds", "share", "usd", "tokens/s")
    steps = [mantissa * 10.0**power for mantissa in (1, 2, 2.5, 5) for power in range(-6, 13)]
    cases = [
        (unit, [(first + number) * step for number in range(count)])
        for unit, step, first, count in itertools.product(units, steps, (-3, -1, 0, 1, 7, 40), range(2, 7))
    ]
    texts = run(cases)["out"]
    assert len(texts) == len(cases)
    assert [
        (unit, values) for (unit, values), each in zip(cases, texts, strict=True) if len(set(each)) < len(values)
    ] == []


def test_smoothing_begins_at_the_first_value():
    assert [round(point["y"], 3) for point in run([])["smooth"]] == [4, 4, 1.714]
