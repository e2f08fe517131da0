"""The documented faults of seven vendors, replayed over HTTP: who is asked again, and no label or bill is wrong."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from charter.data.dataset import Turn
from charter.inference.endpoint.call import CallRequest, prices_of
from charter.inference.endpoint.desk import ExchangeReader
from charter.inference.endpoint.identity import ServerSetting
from charter.inference.endpoint.lanes import Lane
from charter.inference.endpoint.rules import Answered, GiveUp, TryAgain
from charter.inference.endpoint.settling import new_call, settlement_of
from charter.inference.endpoint.transport import Transport, body_of, path_of
from charter.spec.project import Serving

RECORDED = json.loads((Path(__file__).parent / "vendor_faults.json").read_text())
CASES = RECORDED["cases"]
VENDORS = ("openai", "anthropic", "azure", "openrouter", "cloudflare", "vllm", "sglang")
KINDS = ("answer", "rate limit", "overloaded", "context length", "invalid key", "quota exhausted", "5xx in HTML")
KINDS += ("content filter as finish_reason", "content filter as 400", "error inside a 200", "usage missing")
KINDS += ("finish_reason error", "finish_reason abort")
REQUEST = CallRequest(declared="judge", model="judge", turns=(Turn("user", "which is better?"),), max_new_tokens=64)
SERVING = Serving(
    endpoint="http://judge/v1", usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=8.0, api_key="env:KEY"
)


async def replayed():
    """The step after each recorded exchange, and its settlement, with the most that the call could cost."""

    async def answer(request):
        case = CASES[int(request.match_info["number"])]
        is_text = isinstance(case["body"], str)
        body = case["body"] if is_text else json.dumps(case["body"])
        kind = "text/html" if is_text else "application/json"
        return web.Response(status=case["status"], text=body, content_type=kind, headers=case.get("headers"))

    application = web.Application()
    application.router.add_post("/{number}/v1/chat/completions", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    transport = Transport(None, timeout_seconds=30)
    prices, outcomes = prices_of(SERVING), []
    try:
        for number in range(len(CASES)):
            lane = Lane(f"http://127.0.0.1:{port}/{number}/v1", 8)
            setting = ServerSetting(name="judge", serving=SERVING, endpoints=(lane.endpoint,), tell=lambda: None)
            reader = ExchangeReader(setting)
            call = new_call(REQUEST, lane.endpoint, 1, prices)
            exchange = await transport.post(lane.endpoint + path_of(REQUEST), body_of(REQUEST), call.call_id)
            step = reader.read(exchange, REQUEST, lane)
            outcomes.append((step, settlement_of(call, step, prices, REQUEST), call.most_micro_usd))
    finally:
        await transport.close()
        await runner.cleanup()
    return outcomes


@pytest.fixture(scope="module")
def outcomes():
    return asyncio.run(replayed())


def summary(step):
    """What follows from an exchange, in the words of the recording, and what it says."""
    if isinstance(step, TryAgain):
        return step.cause, step.detail
    if isinstance(step, GiveUp):
        return "stop" if step.stops_all else "stop one", str(step.error)
    assert isinstance(step, Answered)
    reply = step.parsed.reply
    return ("refusal", reply.refusal) if reply.refusal else ("answer", reply.text)


def true_bills(case, most):
    """Every amount in micro-USD that the vendor may charge, by its documentation."""
    if case["bill"] == "usage":
        usage = case["body"]["usage"]
        return (2 * usage["prompt_tokens"] + 8 * usage["completion_tokens"],)
    return {"none": (0,), "possible": (0, most)}[case["bill"]]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case['vendor']}-{case['kind']}" for case in CASES])
def test_a_documented_fault_is_read_as_it_is_meant(number, outcomes):
    case, (step, settled, most) = CASES[number], outcomes[number]
    followed, words = summary(step)
    assert followed == case["step"], words
    assert case["says"] in words
    if isinstance(step, Answered):
        assert step.parsed.reply.text == ("a label" if followed == "answer" else "")
    if isinstance(step, TryAgain):
        assert step.retry_after == case.get("headers", {}).get("Retry-After", "")
    least, highest = (0, most) if settled.outcome == "unknown" else (settled.micro_usd, settled.micro_usd)
    assert all(least <= bill <= highest for bill in true_bills(case, most)), settled
    assert settled.outcome == {"usage": "answered", "none": "refused", "possible": "unknown"}[case["bill"]]


def test_every_vendor_and_kind_of_fault_is_recorded_with_its_source():
    assert {case["vendor"] for case in CASES} == set(VENDORS)
    assert set(KINDS) <= {case["kind"] for case in CASES}
    assert {case["source"] for case in CASES} == set(RECORDED["sources"])
    assert all(source["url"].startswith("https://") for source in RECORDED["sources"].values())
