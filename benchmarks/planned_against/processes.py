"""A process of its own for every measurement, forked from a server that has imported torch and run nothing."""

import multiprocessing
import os
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import charter

from .cases import Case

PRELOADED = [f"charter.train.{kind}" for kind in ("sft", "pretrain", "preference_model", "dpo", "ppo")]
LONGEST_SECONDS = 300.0
DETAIL = 300


def in_child(case: Case, what: str, steps: int) -> dict[str, Any] | str:
    """One measurement; what went wrong where it did."""
    os.environ["PYTHONPATH"] = str(Path(charter.__file__).parents[1])
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "transformers.models.llama.modeling_llama"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sender, case, what, steps), daemon=case.processes == 1)
    child.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(LONGEST_SECONDS) else f"took more than {LONGEST_SECONDS:.0f} s"
    except EOFError:
        child.join(10)
        answer = f"ended with {child.exitcode}"
    child.join(10)
    if child.is_alive():
        child.kill()
        child.join()
    return answer


def _child(sender: Connection, case: Case, what: str, steps: int) -> None:
    from . import child

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    try:
        with tempfile.TemporaryDirectory() as place:
            sender.send(child.measured(case, what, steps, Path(place) / "case"))
    except Exception as error:  # the parent goes on with the next case and prints this one
        sender.send(f"{type(error).__name__}: {error}"[:DETAIL])
