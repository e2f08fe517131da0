"""Questions by file, asked by a process that may be killed: `batch_client.py URL PLACE COUNT`."""

import sys
from pathlib import Path

from charter.data.dataset import Turn
from charter.inference.endpoint import batch_desk
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

PRICES = dict(usd_per_million_input_tokens=200.0, usd_per_million_output_tokens=800.0)


def question(number: int) -> CallRequest:
    """One of many questions."""
    turns = (Turn("user", f"question {number}"),)
    return CallRequest(declared="judge", model="judge", turns=turns, max_new_tokens=8)


def asking(
    url: str, calls: CallStore, place: Path, *, batch: bool = True, gate: SpendingGate | None = None
) -> EndpointPool:
    """The client, with its slips beside the store."""
    serving = Serving(endpoint=url, batch=batch, batch_poll=0.01, request_timeout=300.0, **PRICES)
    return EndpointPool.open("judge", serving, calls, directory=place / "slips", gate=gate)


def store(place: Path) -> CallStore:
    """The store of a place."""
    return CallStore.open(place / "calls.sqlite", run="r", stage="s", fingerprint="f")


if __name__ == "__main__":
    batch_desk.GATHER_SECONDS = 0.01
    with store(Path(sys.argv[2])) as stored, asking(sys.argv[1], stored, Path(sys.argv[2])) as pool:
        pool.submit([question(number) for number in range(int(sys.argv[3]))]).result()
