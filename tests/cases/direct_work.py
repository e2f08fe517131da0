"""The jobs of child processes run in the thread that asks: the same code, without a process to start."""

import json
from collections.abc import Callable
from typing import Any

from charter.dashboard.work.child import answer
from charter.dashboard.work.pool import Child, Workers


class DirectChild(Child):
    """Answers at once; what goes in and comes out is JSON, as through a pipe."""

    def ask(self, job: str, arguments: Any, told: Callable[[Any], None]) -> Any:
        asked = json.loads(json.dumps({"job": job, "arguments": arguments}))
        found = answer(asked, lambda said: told(json.loads(json.dumps(said, allow_nan=False))))
        return json.loads(json.dumps(found, allow_nan=False))


def work_directly(client: Any) -> None:
    """Gives the application of a test client such workers."""
    site = client.app.app.state.site
    site.work.close()
    site.work = Workers(child=DirectChild)
