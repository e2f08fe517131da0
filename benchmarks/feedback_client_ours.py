"""Our side of feedback_client.py: the real client with its ledger on disk. Prints CPU seconds and memory.

python feedback_client_ours.py URL MODEL COUNT CONCURRENCY DIR
"""

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from feedback_client_work import MAX_NEW_TOKENS, TOP, TRIVIAL_MODEL, WARM_UP, prompt

from charter.data.dataset import Turn
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

BATCH = 64
BATCHES_AT_ONCE = 4
"""As a stage has them: batches of records, several under way."""


def requests(model: str, first: int, last: int) -> Iterator[CallRequest]:
    """The prompts, made as they are needed."""
    for number in range(first, last):
        yield CallRequest(
            declared=model,
            model=model,
            turns=(Turn("user", prompt(number)),),
            max_new_tokens=MAX_NEW_TOKENS,
            top_log_probabilities=TOP,
            seed=number,
        )


def ask_all(pool: EndpointPool, model: str, first: int, last: int) -> int:
    """Ask in batches, a few at once; how many were answered."""
    waiting = requests(model, first, last)
    under_way: deque = deque()
    done = 0
    while True:
        batch = list(islice(waiting, BATCH))
        if batch:
            under_way.append(pool.submit(batch))
        if not under_way:
            return done
        if len(under_way) >= BATCHES_AT_ONCE or not batch:
            for reply in under_way.popleft().result():
                top = reply.log_probabilities[0].top[0][1]
                assert model != TRIVIAL_MODEL or (reply.text, top) == (" A", -0.25)
                done += 1


def main() -> None:
    """Measure one process."""
    url, model = sys.argv[1:3]
    count, concurrency, place = *map(int, sys.argv[3:5]), Path(sys.argv[5])
    serving = Serving(
        endpoint=url,
        concurrency=concurrency,
        usd_per_million_input_tokens=0.15,
        usd_per_million_output_tokens=0.6,
    )
    with (
        CallStore.open(place / "calls.sqlite", run="r", stage="s", fingerprint="f") as calls,
        EndpointPool.open("judge", serving, calls) as pool,
    ):
        ask_all(pool, model, -WARM_UP, 0)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        assert ask_all(pool, model, 0, count) == count
        after, took = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
        sums = calls.totals().sums
    assert (sums.answered, sums.unknown) == (count + WARM_UP, 0)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    figures = {"cpu_s": cpu, "wall_s": took, "rss_kib": after.ru_maxrss}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
