"""A program in vLLM's place that speaks the real protocol, and breaks as its first argument says.

    fake_vllm.py FAULT PARENT

It "samples" seed + position modulo 7 for each prompt, so that a test can tell rows apart; it reads the weights'
digests from the bytes of the files itself, without the trainer's code.
"""

import hashlib
import json
import os
import signal
import struct
import sys

from charter.inference import vllm_worker


class FakeEngine:
    """Does what the real one does, but for the fault."""

    def __init__(self, fault):
        self.fault, self.version, self.digests = fault, None, {}

    def start(self, *, model, dtype, options):
        self._break("start")
        with open(os.path.join(model, "config.json")) as config:
            json.load(config)
        return {"vllm": "fake", "dtype": dtype, "options": options}

    def load(self, *, version, files):
        self._break("load")
        fresh = {} if self.fault == "keeps old weights" and self.digests else _digests(files)
        self.digests = fresh or self.digests
        if self.fault == "loads nothing known":
            self.digests = {"other.weight": "0"}
        self.version = version - (self.fault == "loads wrong version")
        return {"version": self.version, "digests": self.digests}

    def sample(self, *, version, prompts, seeds, end, max_tokens, **settings):
        self._break("sample")
        if version != self.version:
            raise ValueError(f"asked for {version}, have {self.version}")
        rows = [[(seed + place) % 7 + 10 for place in range(1 + seed % max_tokens)] for seed in seeds]
        chosen = [[-0.5 * (place + 1) for place in range(len(row))] for row in rows]
        if self.fault == "answers too few":
            rows = rows[:-1]
        if self.fault == "answers too long":
            rows[0] = [1] * (max_tokens + 1)
            chosen[0] = [0.0] * (max_tokens + 1)
        if self.fault == "forgets a log-probability":
            chosen[0] = chosen[0][:-1]
        return {
            "version": self.version - (self.fault == "samples wrong version"),
            "tokens": rows,
            "log_probabilities": chosen,
        }

    def sleep(self):
        self.version = None
        return {}

    def _break(self, operation):
        if self.fault == f"dies in {operation}":
            print("CUDA error: the fake GPU fell off the bus", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == f"hangs in {operation}":
            signal.pause()
        if self.fault == f"refuses {operation}":
            raise RuntimeError("no such thing as a free lunch")
        if self.fault == f"garbage in {operation}":
            os.write(SINK, b"INFO 11-21 loading weights: 100%\n" * 4)
        if self.fault == f"half a frame in {operation}":
            os.write(SINK, struct.pack(">I", 100) + b'{"id"')
            os._exit(3)
        if self.fault == f"no JSON in {operation}":
            os.write(SINK, struct.pack(">I", 5) + b"12,,3")
        if self.fault == f"old answer in {operation}":
            body = b'{"id": 0}'
            os.write(SINK, struct.pack(">I", len(body)) + body)


def _digests(files):
    """SHA-256 of the first elements of every norm and embedding in safetensors files."""
    found = {}
    for file in files:
        with open(file, "rb") as stored:
            size = struct.unpack("<Q", stored.read(8))[0]
            header = json.loads(stored.read(size))
            for name, entry in header.items():
                if name.endswith("norm.weight") or name.endswith("embed_tokens.weight"):
                    start, stop = entry["data_offsets"]
                    width = {"F32": 4, "BF16": 2, "F16": 2}[entry["dtype"]]
                    stored.seek(8 + size + start)
                    data = stored.read(min(stop - start, 4096 * width))
                    found[name] = hashlib.sha256(data).hexdigest()
    return found


SINK = 1

if __name__ == "__main__":
    FAULT = sys.argv.pop(1)
    SINK = os.dup(1)
    vllm_worker.VllmEngine = lambda: FakeEngine(FAULT)
    vllm_worker.main()
