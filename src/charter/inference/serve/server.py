"""The process that serves: loads the model, listens, says where, and ends cleanly on SIGTERM or Ctrl-C.

    python -m charter.inference.serve.server OPTIONS

OPTIONS is the JSON of `ServeOptions`. A process of its own, because the command line never imports torch.
"""

import asyncio
import signal
import sys
from pathlib import Path

from aiohttp import web
from transformers.utils.logging import disable_progress_bar

from charter.errors import CharterError, DataError, UsageError
from charter.inference.endpoint.secrets import read_key
from charter.inference.serve.app import make_app
from charter.inference.serve.batcher import Batcher
from charter.inference.serve.engine import ServedModel
from charter.inference.serve.options import ServeOptions, check_address
from charter.models.language_model import load_language_model
from charter.models.preference import HEAD_FILE
from charter.models.runtime import configure

LAST_SECONDS = 5.0
"""How long connections may take to end once the server stops."""


def serve(options: ServeOptions) -> None:
    """Serve a model until SIGTERM or Ctrl-C; the address is printed once it answers."""
    check_address(options)
    directory = Path(options.directory)
    if (directory / HEAD_FILE).exists():
        raise DataError(f"{directory} is a preference model, which gives scores, not text; serve a language model")
    device = configure({"threads": options.threads, "device": options.device})
    disable_progress_bar()
    language_model = load_language_model(directory)
    language_model.model.to(device).eval()
    asyncio.run(_serve(ServedModel(language_model, name=options.name or directory.resolve().name), options))


async def _serve(model: ServedModel, options: ServeOptions) -> None:
    batcher, stop = Batcher(model, batch=options.batch, waiting=options.waiting), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    token = None if options.token is None else read_key(options.token, of="this server")
    app = make_app(model, batcher, token=token)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=LAST_SECONDS, handler_cancellation=True)
    await runner.setup()
    try:
        batcher.start()
        await _listen(runner, options)
        host, port = runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"Serving {model.name} at http://{shown}:{port}/v1", flush=True)
        await stop.wait()
    finally:
        await batcher.close()
        await runner.cleanup()


async def _listen(runner: web.AppRunner, options: ServeOptions) -> None:
    try:
        await web.TCPSite(runner, options.host, options.port).start()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}\n"
            "  give another --port (0 takes any that is free) or --host"
        ) from None


def main() -> None:
    """Serve as the only argument says; errors end as they do on the command line."""
    try:
        serve(ServeOptions.from_json(sys.argv[1]))
    except CharterError as error:
        print(f"error[{error.label}]: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
