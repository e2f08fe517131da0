"""What supervisors and most commands import, and readers of specs, which are made at their first use; see forks.py."""

import tempfile
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import yaml
from engine_workplace import PROJECT

import charter.cli
import charter.launch.local
import charter.ledger.database
import charter.run.runner
import charter.run.submit
from charter.artifacts.job import JobInput, _adapter
from charter.engines.project import load_project
from charter.spec.project import EngineEnvironment, Serving
from charter.spec.stage import STAGE_KINDS

for module in iter_modules(charter.cli.__path__):
    if module.name != "main":
        import_module(f"charter.cli.{module.name}")
for kind in (*STAGE_KINDS.values(), JobInput, Serving, EngineEnvironment):
    _adapter(kind)
with tempfile.TemporaryDirectory() as directory:
    (Path(directory) / "charter.yaml").write_text(yaml.safe_dump(dict(PROJECT)))
    load_project(Path(directory))
