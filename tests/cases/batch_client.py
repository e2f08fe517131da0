"""Questions by file, asked by a process that may be killed: `batch_client.py URL PLACE COUNT API`."""

import sys
from pathlib import Path

from charter.data.dataset import Turn
from charter.inference.endpoint import batch_desk
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.identity import Canaries
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

PRICES = dict(usd_per_million_input_tokens=200.0, usd_per_million_output_tokens=800.0)


def question(number: int, api: str = "chat") -> CallRequest:
    """One of many questions."""
    turns = (Turn("system", "Be short."), Turn("user", f"question {number}"))
    return CallRequest(declared="judge", model="judge", turns=turns, max_new_tokens=8, is_message=api == "messages")


def asking(
    url: str,
    calls: CallStore,
    place: Path,
    *,
    api: str = "chat",
    batch: bool = True,
    gate: SpendingGate | None = None,
    canaries: Canaries | None = None,
) -> EndpointPool:
    """The client, with its slips beside the store."""
    serving = Serving(endpoint=url, api=api, batch=batch, batch_poll=0.01, request_timeout=300.0, **PRICES)
    return EndpointPool.open("judge", serving, calls, directory=place / "slips", gate=gate, canaries=canaries)


def store(place: Path) -> CallStore:
    """The store of a place."""
    return CallStore.open(place / "calls.sqlite", run="r", stage="s", fingerprint="f")


if __name__ == "__main__":
    batch_desk.GATHER_SECONDS = 0.01
    url, place, count, api = sys.argv[1:]
    with store(Path(place)) as stored, asking(url, stored, Path(place), api=api) as pool:
        pool.submit([question(number, api) for number in range(int(count))]).result()
