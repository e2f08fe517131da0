"""Print what comes of asking tasksets for their rows: how many there are, or the error; run with verifiers."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

from charter.inference.verifiers import rows_of


def said(taskset, settings):
    try:
        return f"{len(list(rows_of(taskset, settings, None)))} rows"
    except Exception as error:  # each of them is what a test reads
        return str(error)


print(json.dumps([said(*asked) for asked in json.loads(sys.argv[1])]))
