"""Asks a server many questions in batches, as a stage does: for tests that kill it. Prints the answers at the end.

python client_process.py URL CALLS.sqlite COUNT
"""

import json
import sys
from pathlib import Path

from charter.data.dataset import Turn
from charter.inference.endpoint import lanes, rules
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

BATCH = 16


def main() -> None:
    url, path, count = sys.argv[1:]
    rules.FIRST_SECONDS = lanes.FIRST_AWAY_SECONDS = 0.01
    serving = Serving(
        endpoint=url,
        concurrency=16,
        max_attempts=20,
        usd_per_million_input_tokens=2.0,
        usd_per_million_output_tokens=8.0,
        request_timeout=120.0,
    )
    requests = [
        CallRequest(declared="judge", model="judge", turns=(Turn("user", f"question {number}"),), max_new_tokens=8)
        for number in range(int(count))
    ]
    with (
        CallStore.open(Path(path), run="r", stage="s", fingerprint="f") as calls,
        EndpointPool.open("judge", serving, calls) as pool,
    ):
        batches = [pool.submit(requests[start : start + BATCH]) for start in range(0, len(requests), BATCH)]
        print(json.dumps([reply.text for batch in batches for reply in batch.result()]))


if __name__ == "__main__":
    main()
