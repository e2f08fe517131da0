"""A second request for what takes unusually long, where requests cost nothing.

After the 95th percentile of the latencies so far, so that about one request in twenty is sent twice (Dean and Barroso
2013, "The Tail at Scale", CACM 56). The first answer wins, the other request is given up.
"""

import asyncio

from charter.inference.endpoint.desk import Desk

SHARE = 0.95
FIRST_AFTER = 20
"""Answers before there is a 95th percentile to speak of: one in twenty lies beyond it."""
LOOK_SECONDS = 0.05
"""A straggler takes seconds; being late by this much does not matter."""


async def hedge(desk: Desk) -> None:
    """Look for stragglers until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        usual = desk.counts.latency(SHARE) if len(desk.counts.latencies) >= FIRST_AFTER else None
        if usual is None:
            continue
        now = loop.time()
        late = [
            wanted
            for wanted in desk.open.values()
            if len(wanted.running) == 1 and now - next(iter(wanted.running.values())) > max(usual, LOOK_SECONDS)
        ]
        for wanted in late:
            able = [lane for lane in desk.lanes if lane.has_room(now)]
            if able and not wanted.is_answered and wanted.attempts < desk.setting.serving.max_attempts:
                desk.ask_again(wanted, min(able, key=lambda lane: lane.in_flight / lane.at_once.limit))
