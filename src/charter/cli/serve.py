"""`charter run serve`: a model directory behind an OpenAI-compatible server on this machine.

The command becomes the process that serves, so that signals reach it; it must not import torch itself.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[Path, typer.Argument(help="Hugging Face directory of a language model.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any that is free.")] = 0,
    name: Annotated[
        str | None, typer.Option(help="How clients call the model; the directory's name unless given.")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="env:NAME|file:PATH", help="Where the token that clients must send is kept; never the token itself."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="Requests computed together; with 1 the same request gives the same bits.")
    ] = 16,
    waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait; others are told to come back.")] = 1024,
    threads: Annotated[int, typer.Option(min=1, help="Threads that the model computes with.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, or cuda.")] = "cpu",
) -> None:
    """Serve a language model under OpenAI's API, for small runs and tests; stops on SIGTERM."""
    from charter.inference.serve.options import ServeOptions, check_address
    from charter.run.preflight import RUN_PACKAGES, check_packages

    options = ServeOptions(
        directory=str(model),
        host=host,
        port=port,
        name=name,
        token=token,
        threads=threads,
        device=device,
        batch=batch,
        waiting=waiting,
    )
    check_address(options)
    check_packages((*RUN_PACKAGES, "aiohttp"))
    os.execv(sys.executable, [sys.executable, "-m", "charter.inference.serve.server", options.to_json()])
