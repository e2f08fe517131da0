import json
import subprocess
import sys

import pytest

from charter.launch.job import STAGE_MODULES, preloaded_modules
from charter.launch.local import stage_environment

PRELOAD = """
import json, os, sys
from charter.launch.stage_server import preload
preload(sys.argv[1:])
loaded = [name for name in sys.argv[1:] if name in sys.modules]
print(json.dumps({"threads": len(os.listdir("/proc/self/task")), "loaded": loaded}))
"""


@pytest.mark.torch
def test_after_its_imports_the_server_has_one_thread_so_that_forking_is_safe():
    modules = preloaded_modules(STAGE_MODULES.values())
    done = subprocess.run(
        [sys.executable, "-c", PRELOAD, *modules],
        capture_output=True,
        text=True,
        check=True,
        env=stage_environment(threads=2),
    )
    assert json.loads(done.stdout) == {"threads": 1, "loaded": modules}
