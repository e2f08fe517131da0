"""vLLM in a process of its own, asked over stdin and answering over stdout: `python -m charter.inference.vllm_worker`.

It imports vLLM, torch and the standard library only, so the Python that runs it needs nothing else of Charter's.
A message is a length of 4 bytes (big-endian) and as much JSON: `{"id", "op", ...}` asks, `{"id", ...}` or
`{"id", "error"}` answers. Whatever libraries print goes to stderr.
"""

import ctypes
import gc
import hashlib
import importlib
import json
import os
import signal
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

PROBE_ELEMENTS = 4096
"""Of each compared weight, so many elements from its beginning are hashed."""
_PR_SET_PDEATHSIG = 1
EXTENSION = "charter.inference.vllm_worker.WeightReceiver"


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    message: dict[str, Any] = json.loads(stream.read(struct.unpack(">I", head)[0]))
    return message


def write_message(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    """Write one message."""
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def is_probed(name: str, dimensions: int) -> bool:
    """Return True if an engine keeps this weight under its own name and in its own layout: norms and the embedding.

    >>> is_probed("model.norm.weight", 1), is_probed("model.layers.0.self_attn.q_proj.weight", 2)
    (True, False)
    """
    return (name.endswith("norm.weight") and dimensions == 1) or name.endswith("embed_tokens.weight")


def digest(tensor: Any) -> str:
    """SHA-256 of the first elements of a tensor, in its own data type."""
    import torch

    start = tensor.detach().reshape(-1)[:PROBE_ELEMENTS].to("cpu").contiguous()
    return hashlib.sha256(start.view(torch.uint8).numpy().tobytes()).hexdigest()


class WeightReceiver:
    """Extension of vLLM's worker processes: they take weights from files, and report the digests of those they have."""

    model_runner: Any

    def charter_load(self, files: list[str]) -> dict[str, str]:
        """Load these safetensors files as one checkpoint; the digests of the probed weights as they then are."""
        self.model_runner.reload_weights(weights_iterator=_tensors(files))
        return {
            name: digest(value)
            for name, value in self.model_runner.get_model().named_parameters()
            if is_probed(name, value.dim())
        }


def _tensors(files: list[str]) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    for file in files:
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - it is no mapping
                yield name, stored.get_tensor(name)


class VllmEngine:
    """vLLM's offline engine, one method per request."""

    def __init__(self) -> None:
        self._llm: Any = None
        self._version: int | None = None
        self._sleeps = False

    def start(self, *, model: str, dtype: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Build the engine on a directory that has a config and no weights; they come by `load`."""
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        import torch

        vllm: Any = importlib.import_module("vllm")
        settings = dict(options)
        self._sleeps = bool(settings.get("enable_sleep_mode"))
        settings.setdefault("enforce_eager", not torch.cuda.is_available())
        self._llm = vllm.LLM(
            model=model,
            dtype=dtype,
            load_format="dummy",
            skip_tokenizer_init=True,
            generation_config="vllm",
            enable_prefix_caching=False,
            logprobs_mode="processed_logprobs",
            worker_extension_cls=EXTENSION,
            **settings,
        )
        return {"vllm": vllm.__version__, "torch": torch.__version__}

    def load(self, *, version: int, files: list[str]) -> dict[str, Any]:
        """Take new weights; until they are all there, the engine has no version."""
        self._version = None
        if self._sleeps:
            self._llm.wake_up(tags=["weights"])
        digests = self._llm.collective_rpc("charter_load", args=(files,))[0]
        if self._sleeps:
            self._llm.wake_up(tags=["kv_cache"])
        self._version = version
        return {"version": version, "digests": digests}

    def sample(
        self,
        *,
        version: int,
        prompts: list[list[int]],
        seeds: list[int],
        end: int,
        max_tokens: int,
        min_tokens: int,
        temperature: float,
        top_p: float,
    ) -> dict[str, Any]:
        """Answers with the log-probability of each token, as the sampler saw it."""
        if version != self._version:
            raise ValueError(f"asked for policy version {version}, {self._version} is loaded")
        make = importlib.import_module("vllm").SamplingParams
        params = [
            make(
                seed=seed,
                temperature=temperature,
                top_p=top_p,
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                stop_token_ids=[end],
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
            )
            for seed in seeds
        ]
        token_prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = [item.outputs[0] for item in self._llm.generate(token_prompts, params, use_tqdm=False)]
        tokens = [list(item.token_ids) for item in outputs]
        chosen = [
            [step[token].logprob for token, step in zip(row, item.logprobs, strict=True)]
            for row, item in zip(tokens, outputs, strict=True)
        ]
        return {"version": self._version, "tokens": tokens, "log_probabilities": chosen}

    def sleep(self) -> dict[str, Any]:
        """Give the accelerator's memory back, weights and cache; the next `load` takes it again."""
        self._version = None
        self._llm.sleep(level=2)
        gc.collect()
        return {}


def serve(source: BinaryIO, sink: BinaryIO, engine: Any) -> None:
    """Answer requests until the stream ends or `close` is asked."""
    while (request := read_message(source)) is not None:
        number, operation = request.pop("id"), request.pop("op")
        if operation == "close":
            write_message(sink, {"id": number})
            return
        try:
            answer = getattr(engine, operation)(**request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        write_message(sink, {"id": number, **answer})


def main() -> None:
    """Die with the parent, keep stdout for answers, and serve."""
    parent = int(sys.argv[1])
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    serve(source, sink, VllmEngine())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
