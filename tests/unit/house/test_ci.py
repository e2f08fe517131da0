"""The choice of .ci/run: the base of a change, the suites that it touches, and what runs while time is left."""

import subprocess
import time
from datetime import date

import pytest

import ci
import suites

RAY = suites.Suite(name="ray", arguments=("tests/system/ray",), budget_seconds=60)
POSTGRES = suites.Suite(name="postgres", arguments=("tests/system",), budget_seconds=60)


@pytest.fixture
def git(tmp_path):
    def run(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    def commit(name):
        (tmp_path / name).write_text(name)
        run("add", name)
        run("commit", "-qm", name)
        return run("rev-parse", "HEAD")

    run("init", "-q")
    run.commit = commit
    return run


def test_the_base_is_the_parent_on_main(git, tmp_path):
    first = git.commit("one")
    assert ci.base_commit(tmp_path, None) is None
    git.commit("two")
    assert ci.base_commit(tmp_path, None) == first


def test_the_base_is_the_fork_on_a_branch(git, tmp_path):
    git.commit("one")
    fork = git.commit("two")
    git("checkout", "-q", "-b", "side")
    git.commit("three")
    git.commit("four")
    assert ci.base_commit(tmp_path, None) == fork


def test_a_named_base_is_taken_and_a_wrong_one_refused(git, tmp_path):
    first = git.commit("one")
    git.commit("two")
    git.commit("three")
    assert ci.base_commit(tmp_path, "HEAD~2") == first
    with pytest.raises(SystemExit, match="no-such"):
        ci.base_commit(tmp_path, "no-such")


def test_changes_hold_the_working_tree_and_none_without_a_base(git, tmp_path):
    first = git.commit("one")
    git.commit("two")
    (tmp_path / "one").write_text("other")
    (tmp_path / "new").write_text("new")
    assert ci.changed_files(tmp_path, first) == {"one", "two", "new"}
    assert ci.changed_files(tmp_path, None) == frozenset()


@pytest.fixture
def house(tmp_path):
    texts = {
        "tests/system/ray/test_a.py": "from charter.launch.ray.keeper import x\nfrom ray_cluster import y\n",
        "tests/system/test_p.py": "import charter.ledger\n",
        "tests/cases/ray_cluster.py": "import charter.spec\n",
        "src/charter/launch/ray/keeper.py": "",
        "src/charter/ledger/store.py": "",
        "src/charter/spec/load.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "ray", "postgres"),
    [
        ("tests/system/ray/test_a.py", 1, 0),
        ("tests/system/ray/removed.py", 1, 0),
        ("tests/system/test_p.py", 0, 1),
        ("tests/cases/ray_cluster.py", 1, 0),
        ("src/charter/launch/ray/other.py", 1, 0),
        ("src/charter/launch/job.py", 0, 0),
        ("src/charter/ledger/store.py", 0, 1),
        ("src/charter/spec/load.py", 0, 0),
        ("README.md", 0, 0),
    ],
)
def test_a_change_touches_what_imports_its_folder_directly(house, changed, ray, postgres):
    assert [ci.touching(suite, [changed], house) for suite in (RAY, POSTGRES)] == [ray, postgres]


def test_the_most_touched_suite_comes_first(house):
    changed = ["src/charter/ledger/store.py", "tests/system/test_p.py", "tests/system/ray/test_a.py"]
    (house / suites.LAST_WHOLE).write_text('{"ray": {"date": "2026-01-01", "seconds": 7}}')
    chosen = ci.choices([RAY, POSTGRES], changed, house)
    assert [(choice.suite.name, choice.weight, choice.expected_seconds) for choice in chosen] == [
        ("postgres", 2, 60),
        ("ray", 1, 7),
    ]


def test_what_does_not_fit_or_is_not_touched_is_left_out_aloud(monkeypatch, capsys):
    monkeypatch.setattr(suites, "run", lambda suite, **_: suite.name)
    touched = ci.Choice(suite=RAY, weight=1, record={"date": str(date(2026, 1, 1)), "seconds": 100})
    untouched = ci.Choice(suite=POSTGRES, weight=0, record={})
    now = time.monotonic()
    assert ci.rest([touched, untouched], now - ci.LIMIT_SECONDS + 1000) == ["ray rest"]
    assert capsys.readouterr().out == "left out: postgres: not touched; never recorded whole\n"
    assert ci.rest([touched], now - ci.LIMIT_SECONDS + 10) == []
    assert "left out: ray: no time left; last whole 2026-01-01" in capsys.readouterr().out


def test_a_failed_step_shows_its_output(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    assert ci.step("bad", "sh", "-c", "echo why; exit 3").status == 3
    assert "why" in capsys.readouterr().out
    assert ci.step("good", "sh", "-c", "echo dull").status == 0
    assert "dull" not in capsys.readouterr().out


def test_every_server_and_engine_has_a_smoke():
    without = []
    for suite in (*suites.GROUPS["system"], *suites.GROUPS["handover"]):
        folder = suites.ROOT / suite.arguments[0]
        tests = list(folder.glob("*.py") if suite.name == "postgres" else folder.rglob("*.py"))
        cases = [suites.ROOT / f"tests/cases/{name}.py" for path in tests for name in ci._imported(path)]
        texts = [path.read_text() for path in (*tests, *(case for case in cases if case.exists()))]
        if not any("@pytest.mark.smoke" in text for text in texts):
            without.append(suite.name)
    assert without == []
