"""Run a function in several processes that meet as the processes of a stage do."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 120


def in_group(function: Callable[..., Any], size: int, *arguments: Any, tensor: int = 1, context: int = 1) -> list[Any]:
    """`function(ranks, *arguments)` in `size` forked processes; what each returns, by rank.

    Forked, so that torch and transformers are imported once; the parent must not have used threads of torch before.
    """
    forked, degrees = multiprocessing.get_context("fork"), {"tensor": tensor, "context": context}
    with tempfile.TemporaryDirectory() as place:
        pipes = [forked.Pipe(duplex=False) for _ in range(size)]
        processes = [
            forked.Process(target=_member, args=(rank, size, degrees, place, pipes[rank][1], function, arguments))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for _, writer in pipes:
            writer.close()
        found = [_answer(reader) for reader, _ in pipes]
        for process in processes:
            process.join(SECONDS)
            if process.is_alive():
                process.kill()
    failures = [value for ok, value in found if not ok]
    if failures:
        raise AssertionError("\n".join(failures))
    return [value for _, value in found]


def _answer(reader: Any) -> tuple[bool, Any]:
    if not reader.poll(SECONDS):
        return False, f"no answer within {SECONDS} s"
    try:
        answer: tuple[bool, Any] = reader.recv()
    except EOFError:
        return False, "the process ended without an answer"
    return answer


def _member(
    rank: int,
    size: int,
    degrees: dict[str, int],
    place: str,
    writer: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch

    from charter.models.ranks import join

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "CHARTER_GROUP": "test"}
    try:
        torch.set_num_threads(1)
        ranks = join(Path(place), torch.device("cpu"), **degrees)
        writer.send((True, function(ranks, *arguments)))
        ranks.wait()
    except BaseException:
        writer.send((False, f"rank {rank}: {traceback.format_exc()}"))
    finally:
        writer.close()
        os._exit(0)
