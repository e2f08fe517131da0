"""Behaves as the Trainer of TRL's scripts does, in a fraction of a second and with the faults that a test asks for.

    fake_trainer.py [--node=N] MODEL OUTPUT STEPS EVERY FAULT [RESUME]

Weights after step n are the first ones with n thousandths added, so that a resumed run ends as an undisturbed one.
FAULT: `none`, `lost:N` and `unmade:N` (errors of Ray: a worker was lost, or could not be made), `nothing` (exit 0 at
once), `short` (the final weights are those of an earlier step), `nan`, `shape`, `missing`, `other` (the final weights
are those of no checkpoint), `crash:N`, `memory:N`, `kill:N`, `torn:N` (killed while checkpoint N is being written),
`told:N` (stands still in step N until SIGTERM has come), `gate:N` (stands still in step N until the file that GATE
names is there, and after that step for good). On another node than the first it trains nothing and ends when the first
has, unless the fault is of it: `beside-kill` and `beside-crash`, once there is a checkpoint.
"""

import json
import os
import shutil
import signal
import struct
import sys
import time
import zipfile
from pathlib import Path

node = int(sys.argv.pop(1).partition("=")[2]) if sys.argv[1].startswith("--node=") else 0
model, output = Path(sys.argv[1]), Path(sys.argv[2])
steps, every, fault = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
resume = Path(sys.argv[6]) if len(sys.argv) > 6 else None
kind, _, where = fault.partition(":")
asked_to_save = []
signal.signal(signal.SIGTERM, lambda number, frame: asked_to_save.append(number))


class ActorDiedError(Exception):
    """As Ray calls it."""


def pause():
    time.sleep(0.01)


def tensors(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def save_weights(directory, step, wrong=""):
    header, body = tensors(model / "model.safetensors")
    values = bytearray(body)
    names = sorted(name for name in header if name != "__metadata__")
    begin = header[names[0]]["data_offsets"][0]
    (first,) = struct.unpack_from("<f", values, begin)
    struct.pack_into("<f", values, begin, float("nan") if wrong == "nan" else first + step / 1000)
    if wrong == "shape":
        rows, *rest = header[names[0]]["shape"]
        header[names[0]]["shape"] = [rows // 2, 2 * rest[0]] if rest else [1, rows]
    if wrong == "missing":
        header["model.unknown.weight"] = header.pop(names[0])
    write(directory / "model.safetensors", header, bytes(values))


def save_checkpoint(step):
    directory = output / f"checkpoint-{step}"
    directory.mkdir(parents=True, exist_ok=True)
    save_weights(directory, step, wrong=kind if step == steps else "")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(directory / name, "w") as file:
            file.writestr("data", f"{name} {step}")
    if fault == f"torn:{step}":
        (directory / "trainer_state.json").write_text('{"global_step": ')
        os.kill(os.getpid(), signal.SIGKILL)
    (directory / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": steps}))


while node and not (output / "config.json").exists():
    if kind.startswith("beside-") and output.parent.joinpath("taken").exists():
        if kind == "beside-kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("this node has no rabbit")
    pause()
if node:
    sys.exit(0)
first = json.loads((resume / "trainer_state.json").read_text())["global_step"] if resume else 0
output.mkdir(exist_ok=True)
if kind == "nothing":
    sys.exit(0)
last = steps // 2 if kind == "short" else steps
for step in range(first + 1, last + 1):
    pause()
    while where == str(step) and (
        (kind == "told" and not asked_to_save) or (kind == "gate" and not os.path.exists(os.environ["GATE"]))
    ):
        pause()
    while kind.startswith("beside-") and step > every:
        pause()
    if where == str(step) and kind == "crash":
        raise RuntimeError("the loss is a rabbit")
    if where == str(step) and kind in ("lost", "unmade"):
        raise ActorDiedError("The actor died unexpectedly.") from (KeyError("rabbit") if kind == "unmade" else None)
    if where == str(step) and kind == "memory":
        raise MemoryError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    if where == str(step) and kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    print(
        {"loss": f"{1 / step:.4g}", "grad_norm": "0.5", "learning_rate": "1e-05", "epoch": f"{step / steps:.4g}"},
        flush=True,
    )
    if step % every == 0 or step == last or asked_to_save:
        save_checkpoint(step)
    if asked_to_save:
        break
    while where == str(step) and kind == "gate":
        pause()
save_weights(output, 0 if kind == "other" else (step if first < last else last), wrong=kind)
shutil.copy(model / "config.json", output / "config.json")
