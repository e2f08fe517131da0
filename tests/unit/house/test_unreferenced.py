"""`tools/unreferenced.py`: what counts as a use, and what only looks like one."""

import pytest

from unreferenced import read_modules, unreferenced, users


def dead(root, files, public=(), waiting=()):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return [unit.label for unit in unreferenced(root, read_modules(root / "src"), public, waiting)[0]]


@pytest.mark.parametrize(
    "use",
    [
        "from p.a import f\n\nf()\n",
        "from p.a import f as g\n\ng()\n",
        "from p import a\n\nprint(a.f)\n",
        "import p.a\n\nprint(p.a.f)\n",
        "from p import f\n\nf()\n",
        "import p\n\np.f()\n",
        "from importlib import import_module\n\nimport_module('p.a').f()\n",
        "from importlib import import_module\n\nVERBS = {'f': 'a.f'}\n",
        "from p import a\n\ndef g(kind):\n    return getattr(a, f'f{kind}')\n\ng('')()\n",
        "from .a import f\n\nf()\n",
        "import typer\n\napp = typer.Typer()\n\n@app.command()\ndef verb():\n    from p.a import f\n    f()\n",
    ],
)
def test_use_is_seen_through_imports_and_texts(tmp_path, use):
    init = "from p.a import f\n" if "p import f" in use or "p.f()" in use else ""
    assert dead(tmp_path, {"src/p/__init__.py": init, "src/p/a.py": "def f():\n    pass\n", "src/p/b.py": use}) == []


@pytest.mark.parametrize(
    "other",
    [
        "",
        "from p.a import f\n",
        "def f():\n    pass\n\nf()\n",
        '"""Calls f in its docstring: p.a.f."""\n',
        "class C:\n    def f(self):\n        pass\n\nprint(C().f)\n",
        "__all__ = ['f']\n",
    ],
)
def test_import_namesake_or_docstring_is_no_use(tmp_path, other):
    files = {
        "src/p/a.py": "def f():\n    return f()\n",
        "src/p/b.py": other,
        "tests/t.py": "from p.a import f\n\nf()\n",
    }
    assert dead(tmp_path, files) == ["a.f"]


def test_what_only_dead_code_calls_is_dead(tmp_path):
    chain = "def f():\n    return g()\n\ndef g():\n    return Row()\n\nclass Row:\n    def total(self):\n        pass\n"
    assert dead(tmp_path, {"src/p/a.py": chain}) == ["a.f", "a.g", "a.Row"]
    assert dead(tmp_path, {"src/p/b.py": "from p.a import f\n\nf()\n"}) == ["a.Row.total"]


def test_method_is_dead_unless_its_name_follows_a_dot(tmp_path):
    source = "class Row:\n    def a(self):\n        return self.a\n    def b(self):\n        pass\n"
    source += "    def c(self):\n        pass\n"
    assert dead(tmp_path, {"src/p/a.py": source + "\nprint(Row().b, getattr(Row(), 'c'))\n"}) == ["a.Row.a"]


@pytest.mark.parametrize("use", ["getattr(Row(), f'{x}_seconds')", "getattr(Row(), x)"])
def test_method_read_by_a_variable_lives(tmp_path, use):
    source = "class Row:\n    def wall_seconds(self):\n        pass\n\ndef wall_seconds():\n    pass\n\n"
    source += f"for x in ('wall', 'wall_seconds'):\n    print({use})\n"
    assert dead(tmp_path, {"src/p/a.py": source}) == ["a.wall_seconds"]


def test_methods_that_an_outside_base_calls_live(tmp_path):
    source = "import nn\n\nclass Base(nn.Module):\n    pass\n\n"
    source += "class Layer(Base):\n    def forward(self):\n        pass\n\nLayer()\n"
    assert dead(tmp_path, {"src/p/a.py": source}) == []
    assert dead(tmp_path, {"src/p/a.py": source.replace("nn.Module", "Exception")}) == ["a.Layer.forward"]


def test_entry_points_are_scripts_templates_tools_and_public(tmp_path):
    source = "__all__ = ['api']\n\ndef script():\n    pass\n\ndef api():\n    pass\n\ndef page():\n    pass\n\n"
    source += "class View:\n    def heading(self):\n        pass\n\nView()\n"
    assert dead(tmp_path, {"src/p/a.py": source}) == ["a.script", "a.api", "a.page", "a.View.heading"]
    entries = {
        "pyproject.toml": '[project.scripts]\np = "p.a:script"\n',
        "src/p/page.html": "heading {{ view.heading }}",
        "tools/pages.py": "from p.a import page\n\npage()\n",
    }
    assert dead(tmp_path, entries, public=["p.a"]) == []


def test_what_waits_keeps_what_it_refers_to(tmp_path):
    source = "def f():\n    return g()\n\ndef g():\n    pass\n\ndef h():\n    pass\n\nh()\n"
    assert dead(tmp_path, {"src/p/a.py": source}, waiting=["a.f", "a.h"]) == []
    _, idle = unreferenced(tmp_path, read_modules(tmp_path / "src"), waiting=["a.f", "a.h"])
    assert [unit.label for unit in idle] == ["a.f"]
    assert dead(tmp_path, {}, public=["a.f"]) == []


def test_users_are_the_folders_that_name_it(tmp_path):
    files = {"src/p/a.py": "def f():\n    pass\n\ndef g():\n    pass\n", "tests/t.py": "from p.a import f\n"}
    dead(tmp_path, files)
    units, _ = unreferenced(tmp_path, read_modules(tmp_path / "src"))
    assert users(units, {"tests": tmp_path / "tests"}) == {"a.f": ["tests"], "a.g": []}
