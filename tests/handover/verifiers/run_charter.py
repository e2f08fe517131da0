"""The `charter` command in an environment that has verifiers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

from charter.cli.main import entry

entry()
