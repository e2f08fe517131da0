"""Rules for the whole repository: safe loading, nothing outside the clone, pins that match."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import charter

ROOT = Path(__file__).resolve().parents[3]
THIS_FILE = Path(__file__).resolve()
PYTHON = [
    path
    for folder in ("src", "tests", "tools", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != THIS_FILE and "__pycache__" not in path.parts
]
LOADS_CODE = {
    "weights_only=False": r"weights_only\s*=\s*False",
    "torch.load without weights_only=True": r"torch\.load\((?![^)]*weights_only\s*=\s*True)",
    "pickle": r"^\s*(import|from)\s+(pickle|cPickle|dill|cloudpickle|joblib|shelve)\b|\bpickle\.loads?\(",
    "yaml.load without a safe loader": r"yaml\.(load|load_all)\((?![^)]*Safe)",
    "unsafe YAML loader": r"yaml\.(unsafe_load|full_load|UnsafeLoader|FullLoader)",
    "trust_remote_code": r"trust_remote_code[\"']?\s*[=:]\s*True",
    "eval or exec of text": r"(?<![\w.])(eval|exec)\(",
    "a shell": r"shell\s*=\s*True|os\.system\(",
    "a temporary name that can be guessed": r"tempfile\.mktemp\(",
}


def offences(pattern: str, text: str) -> list[str]:
    """The matches of a rule in a text."""
    return [found.group(0) for found in re.finditer(pattern, text, flags=re.MULTILINE)]


@pytest.mark.parametrize("rule", LOADS_CODE)
def test_no_file_breaks_a_security_rule(rule):
    found = {str(path.relative_to(ROOT)): offences(LOADS_CODE[rule], path.read_text()) for path in PYTHON}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        ("weights_only=False", "torch.load(p, weights_only = False)", "torch.load(p, weights_only=True)"),
        (
            "torch.load without weights_only=True",
            "torch.load(p,\n  map_location='cpu')",
            "torch.load(p, weights_only=True)",
        ),
        ("pickle", "    from pickle import loads", "unpickled = 3"),
        ("yaml.load without a safe loader", "yaml.load(text)", "yaml.load(text, Loader=SafeLoader)"),
        ("unsafe YAML loader", "yaml.full_load(text)", "yaml.safe_load(text)"),
        ("trust_remote_code", "f(trust_remote_code=True)", "f(trust_remote_code=False)"),
        ("eval or exec of text", "x = eval(text)", "model.eval()"),
        ("a shell", "run(command, shell=True)", "run(command)"),
        ("a temporary name that can be guessed", "tempfile.mktemp()", "tempfile.mkdtemp()"),
    ],
)
def test_the_rules_see_what_they_should(rule, bad, good):
    assert offences(LOADS_CODE[rule], bad)
    assert not offences(LOADS_CODE[rule], good)


def test_nothing_but_benchmarks_depends_on_files_beside_the_clone():
    outside = re.compile(r"shared/|[\"'/]shared[\"']|/work/")
    inside = [path for path in PYTHON if ROOT / "benchmarks" not in path.parents]
    assert [str(path.relative_to(ROOT)) for path in inside if outside.search(path.read_text())] == []


def test_no_file_is_called_utils():
    vague = {"utils.py", "util.py", "helpers.py", "misc.py"}
    assert [str(path) for path in PYTHON if path.name in vague] == []


def pins() -> dict[str, str]:
    rows = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#")
    return dict(row.split("==") for row in rows)


def declared() -> list[Requirement]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = pyproject["project"]["optional-dependencies"].values()
    lines = [*pyproject["project"]["dependencies"], *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in (*lines, *pyproject["build-system"]["requires"])]


def test_every_dependency_is_pinned_at_a_version_that_pyproject_accepts():
    pinned = pins()
    wrong = [str(item) for item in declared() if not item.specifier.contains(pinned.get(item.name.lower(), "0"))]
    assert [str(item) for item in declared() if item.name.lower() not in pinned] == []
    assert wrong == []


def test_the_core_stays_small():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    core = {Requirement(line).name for line in pyproject["project"]["dependencies"]}
    assert core == {"typer", "pydantic", "rich", "pyyaml", "numpy"}


def test_ci_tests_with_the_torch_that_the_project_names():
    assert pins()["torch"] == "2.13.0"


def test_the_changelog_has_a_section_for_this_version_or_an_unreleased_one():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings
    assert {charter.__version__, "Unreleased"} & set(headings[:2])


@pytest.mark.parametrize("script", [".ci/run", "tools/setup.sh", "tools/demo.sh"])
def test_shell_scripts_parse_and_stop_at_the_first_error(script):
    text = (ROOT / script).read_text()
    assert "set -euo pipefail" in text
    assert subprocess.run(["bash", "-n", ROOT / script], check=False).returncode == 0
