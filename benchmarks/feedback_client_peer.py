"""The peer of feedback_client.py: the `openai` async client, a semaphore, no ledger. Prints its CPU seconds.

python feedback_client_peer.py URL MODEL COUNT CONCURRENCY
"""

import asyncio
import json
import resource
import sys
import time

from feedback_client_work import MAX_NEW_TOKENS, TOP, TRIVIAL_MODEL, WARM_UP, prompt
from openai import AsyncOpenAI


async def main() -> None:
    """Ask, as a script with this client usually does: one task per prompt behind a semaphore."""
    url, model = sys.argv[1:3]
    count, concurrency = map(int, sys.argv[3:])
    client = AsyncOpenAI(base_url=url, api_key="none", timeout=60)
    gate = asyncio.Semaphore(concurrency)

    async def ask(number: int) -> tuple[str, float]:
        async with gate:
            reply = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt(number)}],
                max_tokens=MAX_NEW_TOKENS,
                temperature=1.0,
                top_p=1.0,
                seed=number,
                logprobs=True,
                top_logprobs=TOP,
            )
        choice = reply.choices[0]
        return choice.message.content or "", choice.logprobs.content[0].top_logprobs[0].logprob

    await asyncio.gather(*(ask(number) for number in range(-WARM_UP, 0)))
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    answers = await asyncio.gather(*(ask(number) for number in range(count)))
    after, took = resource.getrusage(resource.RUSAGE_SELF), time.monotonic() - began
    assert model != TRIVIAL_MODEL or answers == [(" A", -0.25)] * count
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    print(json.dumps({"cpu_s": cpu, "wall_s": took, "rss_kib": after.ru_maxrss}))


if __name__ == "__main__":
    asyncio.run(main())
