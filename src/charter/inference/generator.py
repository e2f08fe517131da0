"""Generator of a rollout's answers: this process, or vLLM in a process of its own, its weights sent by file.

Legend: B answers, R answer tokens.
"""

import contextlib
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

import charter
from charter.engines import capabilities
from charter.errors import StageError
from charter.inference.generate import Answers, SamplingSettings, generate, joined, pad_left
from charter.inference.vllm_worker import digest, is_probed
from charter.models.language_model import LanguageModel
from charter.spec.ppo_stage import VLLM_SAMPLE_SECONDS, VLLM_START_SECONDS, VLLM_SYNC_SECONDS
from charter.spec.stage_base import NATIVE

NamedTensors = Iterable[tuple[str, Tensor]]
Weights = NamedTensors | Callable[[], NamedTensors]
"""Named tensors as `state_dict().items()` has them, or what makes them when they are wanted."""


class Generator(Protocol):
    """Samples answers to a fixed batch of prompts with known weights."""

    @property
    def version(self) -> int | None:
        """The policy version that is loaded; None before the first `update_weights`."""

    @property
    def is_exact(self) -> bool:
        """Return True if the same batch, seeds and weights give the same bits again; if not, answers must be stored."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        settings: SamplingSettings,
        prompt_width: int | None = None,
        version: int | None = None,
    ) -> Answers:
        """One answer per prompt; refused when `version` is given and is not the one that is loaded."""

    def update_weights(self, weights: Weights, *, version: int) -> None:
        """Take the weights of a policy version."""

    def close(self) -> None:
        """Give back what the generator holds; may be called twice."""


class NativeGenerator:
    """`generate` on the policy of this process: it has the newest weights by itself, and is repeatable bit for bit."""

    is_exact = True

    def __init__(self, policy: LanguageModel, *, at_once: int = 0, tell: Callable[[], None] = lambda: None) -> None:
        """Draw `at_once` answers together, one part of a batch after the other; 0: all of it."""
        self._policy, self._at_once, self._tell = policy, at_once, tell
        self.version: int | None = None

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        settings: SamplingSettings,
        prompt_width: int | None = None,
        version: int | None = None,
    ) -> Answers:
        """One answer per prompt by the weights as they are now."""
        check_version(version, self.version)
        size, parts = self._at_once or len(prompts), []
        for start in range(0, len(prompts), size):
            part = slice(start, start + size)
            parts.append(
                generate(
                    self._policy,
                    prompts[part],
                    seeds=seeds[part],
                    settings=settings,
                    prompt_width=prompt_width,
                    tell=self._tell,
                )
            )
        return joined(parts, padding=self._policy.padding_id)

    def update_weights(self, weights: Weights, *, version: int) -> None:
        """Note the version; the weights are the policy's own, so none are read."""
        self.version = version

    def close(self) -> None:
        """Nothing is held."""


def check_version(asked: int | None, loaded: int | None) -> None:
    """Refuse to sample by other weights than those asked for.

    >>> check_version(3, 3)
    """
    if asked is not None and asked != loaded:
        present = "no policy version yet" if loaded is None else f"policy version {loaded}"
        raise StageError(
            f"the rollout asks for policy version {asked}, the generator has {present}; call update_weights first"
        )


MESSAGE_LIMIT_BYTES = 1 << 30
_LOG_TAIL_BYTES = 2000


class VllmProcess:
    """Sends a request, waits for its answer at most so long; whatever goes wrong ends the program with a StageError.

    A message is a length of 4 bytes (big-endian) and as much JSON.
    """

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self._name, self._log, self._number, self._is_killed = name, log, 0, False
        try:
            with log.open("ab") as written:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=written,
                    env=dict(environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise StageError(f"{name}: cannot start {command[0]}: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return True if it has not ended."""
        return self._process.poll() is None

    def call(self, operation: str, *, seconds: float, **request: Any) -> dict[str, Any]:
        """The answer to a request; a program that is dead, silent, refuses or talks nonsense is ended."""
        if not self.is_running:
            raise self.failure(f"has ended{self._ending()}")
        self._number += 1
        body = json.dumps({"id": self._number, "op": operation, **request}).encode()
        deadline = time.monotonic() + seconds
        try:
            self._send(struct.pack(">I", len(body)) + body, deadline)
            size = struct.unpack(">I", self._receive(4, deadline))[0]
            if size > MESSAGE_LIMIT_BYTES:
                raise self.failure(f"answered {operation} with a message of {size} bytes, which is not the protocol")
            answer = self._parsed(self._receive(size, deadline), operation)
        except TimeoutError:
            raise self.failure(f"did not answer {operation} within {seconds:g} s") from None
        except EOFError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            raise self.failure(f"ended during {operation}{self._ending()}") from None
        if "error" in answer:
            raise self.failure(f"could not {operation}: {answer['error']}")
        return answer

    def kill(self) -> None:
        """End it, and what it has started, now."""
        if self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def close(self, *, seconds: float = 5) -> None:
        """Ask it to end, and end it when it does not."""
        if self.is_running:
            with contextlib.suppress(StageError):
                self.call("close", seconds=seconds)
        self.kill()

    def _parsed(self, body: bytes, operation: str) -> dict[str, Any]:
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("id") != self._number:
            raise self.failure(f"answered {operation} with {body[:60]!r}, which is not the protocol")
        return answer

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            self._await([], [self._to], deadline)
            try:
                view = view[os.write(self._to, view) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise EOFError from None

    def _receive(self, count: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < count:
            self._await([self._from], [], deadline)
            try:
                part = os.read(self._from, min(count - len(received), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise EOFError
            received += part
        return bytes(received)

    @staticmethod
    def _await(readable: list[int], writable: list[int], deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not any(select.select(readable, writable, [], remaining)):
            raise TimeoutError

    def _ending(self) -> str:
        code = self._process.poll()
        return "" if code is None else f" (exit {code})" if code >= 0 else f" (signal {-code})"

    def failure(self, message: str) -> StageError:
        """End the program; the error that says why."""
        self.kill()
        tail = ""
        with contextlib.suppress(OSError):
            tail = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        ending = "\n  " + "\n  ".join(tail.splitlines()[-8:]) if tail else ""
        return StageError(f"{self._name} (process {self._process.pid}) {message}; its log is {self._log}{ending}")


PYTHON = "CHARTER_VLLM_PYTHON"
"""Environment variable: the Python that has vLLM; without it, the one that runs Charter."""
WORKER = "charter.inference.vllm_worker"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_OF_THE_TRAINER = re.compile(r"((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
"""Variables of torchrun: an engine that found the agent's store named here would wait for it."""


BUCKET_BYTES = 1 << 30
"""Weights are written in files of about this size, so that the trainer copies no more at once."""


@dataclass(frozen=True, kw_only=True)
class VllmOptions:
    """Options of the engine's construction, and the time that it may take."""

    tensor: int = 1
    """Accelerators over which vLLM splits the model."""
    max_model_len: int | None = None
    """Longest prompt with its answer in tokens; what the model's config says where None."""
    sleep: bool = False
    """Give memory back after every rollout (vLLM's sleep mode, level 2); accelerators only."""
    start_seconds: float = VLLM_START_SECONDS
    sync_seconds: float = VLLM_SYNC_SECONDS
    sample_seconds: float = VLLM_SAMPLE_SECONDS

    def engine(self) -> dict[str, Any]:
        """The arguments of vLLM's `LLM`."""
        arguments: dict[str, Any] = {
            "tensor_parallel_size": self.tensor,
            "gpu_memory_utilization": capabilities(NATIVE).vllm_share,
        }
        if self.max_model_len is not None:
            arguments["max_model_len"] = self.max_model_len
        if self.sleep:
            arguments["enable_sleep_mode"] = True
        return arguments


class VllmGenerator:
    """Samples by vLLM; the answers must be stored, since the same seeds may give others in another batch."""

    is_exact = False

    def __init__(
        self,
        policy: LanguageModel,
        directory: Path,
        *,
        dtype: str,
        options: VllmOptions | None = None,
        command: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """Start vLLM on the policy's architecture; `directory` takes its log. `command` replaces the program."""
        if dtype not in DTYPES:
            raise StageError(f"vLLM cannot sample in {dtype!r}; it can in {', '.join(DTYPES)}")
        self._dtype, self._options = dtype, options or VllmOptions()
        self._end, self._padding = policy.end_id, policy.padding_id
        self._version: int | None = None
        self._names = weight_names(policy)
        self._scratch = tempfile.TemporaryDirectory(prefix="charter-vllm-", dir=_scratch_root())
        policy.model.config.save_pretrained(self._scratch.name)
        directory.mkdir(parents=True, exist_ok=True)
        self._process = VllmProcess(
            "vLLM",
            (command or vllm_command)(),
            environment=worker_environment(os.environ),
            log=directory / "vllm.log",
        )
        self.versions = self._process.call(
            "start",
            seconds=self._options.start_seconds,
            model=self._scratch.name,
            dtype=str(DTYPES[dtype]).removeprefix("torch."),
            options=self._options.engine(),
        )

    @property
    def version(self) -> int | None:
        """The policy version that vLLM has loaded and that was checked."""
        return self._version

    @property
    def pid(self) -> int:
        """The process id of vLLM."""
        return self._process.pid

    def update_weights(self, weights: Weights, *, version: int) -> None:
        """Send all weights in the engine's data type, and compare digests of what it then holds."""
        self._version = None
        with tempfile.TemporaryDirectory(dir=self._scratch.name) as folder:
            files, expected = self._write(weights, Path(folder))
            answer = self._process.call("load", seconds=self._options.sync_seconds, version=version, files=files)
        digests = answer.get("digests")
        if answer.get("version") != version or not isinstance(digests, dict):
            raise self._process.failure(f"loaded policy version {answer.get('version')} instead of {version}")
        stale = sorted(name for name, value in expected.items() if name in digests and digests[name] != value)
        if stale or not expected.keys() & digests.keys():
            examples = ", ".join(stale[:3]) or "none of those sent can be found"
            raise self._process.failure(f"does not hold the weights of policy version {version}: {examples}")
        self._version = version

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        settings: SamplingSettings,
        prompt_width: int | None = None,
        version: int | None = None,
    ) -> Answers:
        """One answer per prompt, with the log-probability that vLLM gave each token; on the host, as they go to others.

        These are of the distribution that was sampled: at the temperature, after top-p and without the end token
        before `min_new_tokens`; at temperature 0 they are at temperature 1.
        """
        check_version(version, self._version)
        if self._version is None:
            raise StageError("vLLM has no weights yet; call update_weights first")
        answer = self._process.call(
            "sample",
            seconds=self._options.sample_seconds,
            version=self._version,
            prompts=[list(prompt) for prompt in prompts],
            seeds=list(seeds),
            end=self._end,
            max_tokens=settings.max_new_tokens,
            min_tokens=settings.min_new_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
        )
        rows, chosen = self._checked(answer, len(prompts), settings)
        if self._options.sleep:
            self._version = None
            self._process.call("sleep", seconds=self._options.sync_seconds)
        return self._answers(prompts, rows, chosen, prompt_width)

    def close(self) -> None:
        """End vLLM and remove what was written for it."""
        self._version = None
        self._process.close()
        self._scratch.cleanup()

    def _write(self, weights: Weights, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Files of about a bucket each, and the digests that the engine must have."""
        files: list[str] = []
        expected: dict[str, str] = {}
        bucket: dict[str, Tensor] = {}

        def flush() -> None:
            if bucket:
                files.append(str(folder / f"weights-{len(files)}.safetensors"))
                save_file(bucket, files[-1])
                bucket.clear()

        missing = set(self._names)
        for name, tensor in weights() if callable(weights) else weights:
            missing.discard(name)
            copied = tensor.detach().to("cpu", DTYPES[self._dtype], copy=True).contiguous()
            if is_probed(name, copied.dim()):
                expected[name] = digest(copied)
            bucket[name] = copied
            if sum(item.nbytes for item in bucket.values()) >= BUCKET_BYTES:
                flush()
        flush()
        if missing:
            raise StageError(
                f"vLLM was to get all weights of the policy, and {len(missing)} are missing, {sorted(missing)[0]} the "
                "first; send the full state dict, adapters merged"
            )
        return files, expected

    def _checked(
        self, answer: Mapping[str, Any], count: int, settings: SamplingSettings
    ) -> tuple[list[list[int]], list[list[float]]]:
        """The tokens and log-probabilities of an answer, refused when they cannot be of this request."""
        if answer.get("version") != self._version:
            raise self._process.failure(f"sampled by policy version {answer.get('version')}, not {self._version}")
        rows, chosen = answer.get("tokens"), answer.get("log_probabilities")
        if not (isinstance(rows, list) and isinstance(chosen, list) and len(rows) == len(chosen) == count):
            raise self._process.failure(f"did not answer each of {count} prompts")
        for row, values in zip(rows, chosen, strict=True):
            if not 0 < len(row) == len(values) <= settings.max_new_tokens:
                raise self._process.failure(f"gave {len(row)} tokens with {len(values)} log-probabilities")
        return rows, chosen

    def _answers(
        self,
        prompts: Sequence[Sequence[int]],
        rows: list[list[int]],
        chosen: list[list[float]],
        prompt_width: int | None,
    ) -> Answers:
        prompt_BQ, prompt_mask_BQ = pad_left(prompts, padding=self._padding, width=prompt_width)
        width = max(len(row) for row in rows)
        answer_BR = torch.full((len(rows), width), self._padding, dtype=torch.long)
        log_probability_BR = torch.zeros((len(rows), width), dtype=torch.float32)
        answer_mask_BR = torch.zeros((len(rows), width), dtype=torch.bool)
        for index, (row, values) in enumerate(zip(rows, chosen, strict=True)):
            answer_BR[index, : len(row)] = torch.tensor(row)
            log_probability_BR[index, : len(row)] = torch.tensor(values)
            answer_mask_BR[index, : len(row)] = True
        return Answers(prompt_BQ, prompt_mask_BQ, answer_BR, answer_mask_BR, log_probability_BR)


def weight_names(policy: LanguageModel) -> frozenset[str]:
    """The names that a whole checkpoint of the policy's architecture has, without those tied to others."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return frozenset(name for name, _ in AutoModelForCausalLM.from_config(policy.model.config).named_parameters())


def vllm_command() -> list[str]:
    """The program that runs vLLM and dies with this process."""
    return [os.environ.get(PYTHON) or sys.executable, "-m", WORKER, str(os.getpid())]


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what torchrun gave it, and with Charter on the path."""
    source = str(Path(charter.__file__).parent.parent)
    inherited = {name: value for name, value in environment.items() if not _OF_THE_TRAINER.fullmatch(name)}
    path = os.pathsep.join(item for item in (source, environment.get("PYTHONPATH", "")) if item)
    return {**inherited, "PYTHONPATH": path}


def _scratch_root() -> str | None:
    """Shared memory where there is some, so that weights do not pass through a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
