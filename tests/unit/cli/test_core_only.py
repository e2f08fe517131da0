"""An installation without extras: every command works, or ends with exit code 7 and names the extra that it needs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from charter.cli.main import COMMANDS
from charter.errors import EXTRAS
from charter.templates.shipped import find_template, write_template

ROOT = Path(__file__).parents[3]
DISTRIBUTIONS = {"pynvml": "nvidia-ml-py"}
"""Distributions that are not called like their module."""
LINES = (
    "init other", "plan", "plan ask --hardware H100:8 --model 1B", "plan compare .", "plan scale plan -N 1B",
    "plan mem meta-llama/Llama-3.1-8B -a H100:8", "plan simulate sft", "check charter.yaml", "check environment",
    "check versions", "check schema", "run --yes", "run --dry-run", "run resume", "run again sft", "run serve model",
    "submit --on slurm --print", "submit --on ray --print", "status", "status track status", "status actions",
    "status tag keep", "logs sft", "approve sft", "stop", "ui", "report", "report samples", "cost", "cost report",
    "data check data", "data constitution",
    "artifacts", "artifacts checkpoints list", "artifacts checkpoints backup", "artifacts export sft out",
    "artifacts fetch org", "artifacts import .", "artifacts accept sft", "catalog", "catalog gpus", "catalog models",
    "catalog prices", "validate none.csv", "validate calibrate", "validate convert none.csv -o o.csv",
    "validate share none.csv -o o.csv --as ABC",
)  # fmt: skip
SCRIPT = """
import contextlib, importlib.abc, io, json, sys
words, blocked = json.loads(sys.argv[1]), set(json.loads(sys.argv[2]))

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from charter.cli.main import entry
ends = {}
for line in words:
    sys.argv, errors = ["charter", *line.split()], io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            entry()
        except SystemExit as end:
            ends[line] = (end.code, errors.getvalue())
print(json.dumps(ends))
"""


def test_commands_without_extras_work_or_name_the_extra(tmp_path):
    write_template(find_template("cai-smoke"), tmp_path)
    blocked = [module for modules in EXTRAS.values() for module in modules]
    child = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(LINES), json.dumps(blocked)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ends = json.loads(child.stdout.splitlines()[-1])
    tried = {" ".join(line.split()[:length]) for line in LINES for length in (1, 2)}
    assert set(COMMANDS) <= tried, "every verb is tried"
    assert {line: end for line, end in ends.items() if end[0] == 1} == {}
    named = {line: text for line, (code, text) in ends.items() if code == 7}
    assert {"run --yes", "cost report", "run serve model"} <= set(named)
    assert [line for line, text in named.items() if "pip install" not in text or ".[" not in text] == []


def test_table_of_extras_is_that_of_the_package():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    declared = {
        name: {re.split(r"[\[><=]", line)[0] for line in lines}
        for name, lines in extras.items()
        if not name.startswith("dev")
    }
    earlier: set[str] = set()
    for extra, distributions in declared.items():
        modules = {DISTRIBUTIONS.get(module, module.replace("_", "-")) for module in EXTRAS[extra]}
        assert modules == {name.replace("mlflow-skinny", "mlflow") for name in distributions} - earlier, extra
        earlier |= modules
