"""Saving and loading a training state in one process."""

import json
import multiprocessing
import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from torch import nn

from charter.artifacts import durable
from charter.artifacts.checkpoints import Position
from charter.artifacts.fingerprint import free_bytes
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError, StageError
from charter.models.ranks import Ranks
from charter.spec.stage import SftStage
from charter.train.checkpoint import (
    Background,
    Checkpointer,
    HostBuffers,
    SaveMode,
)
from charter.train.optimizers import make_optimizer
from charter.train.state import (
    TrainState,
    saved_tensors,
    tensors_of,
)

SPEC = SftStage(init="base", data=("chat",), steps=6)
OPTIMIZERS = {
    "adamw": lambda items: torch.optim.AdamW(items, lr=0.1, betas=(0.8, 0.9)),
    "momentum": lambda items: torch.optim.SGD(items, lr=0.1, momentum=0.9),
    "sgd": lambda items: torch.optim.SGD(items, lr=0.1),
    "adafactor": lambda items: torch.optim.Adafactor(items, lr=0.1),
    "adamw_8bit": lambda items: adamw_8bit(items),
    "rate in a tensor": lambda items: torch.optim.AdamW(items, lr=torch.tensor(0.1), foreach=False, capturable=False),
}


def adamw_8bit(items):
    """Charter's own, for tensors large enough to be kept in 8 bits."""
    pytest.importorskip("bitsandbytes")
    return make_optimizer([(items, 0.1)], replace(SPEC, optimizer="adamw_8bit"))


class Counter:
    """A component of plain values."""

    def __init__(self) -> None:
        self.value = 0.1

    def state_dict(self):
        return {"value": self.value, "history": [self.value, None, True]}

    def load_state_dict(self, state):
        self.value = state["value"]


class Net(nn.Module):
    """Tied weights, a frozen layer, a buffer that is kept and one that is not."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.tied, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.tied.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("derived", torch.full((2,), float(seed)), persistent=False)

    def forward(self, x):
        return self.tied(self.frozen(self.first(x)).tanh())


def make_state(seed: int, optimizer: str = "adamw") -> TrainState:
    net = Net(seed)
    trained = [item for item in net.parameters() if item.requires_grad]
    made = OPTIMIZERS[optimizer](trained)
    return TrainState(modules={"net": net}, optimizers={"net": made}, plain={"counter": Counter()})


def work(state: TrainState, step: int) -> None:
    """One step that changes everything that may change."""
    net, optimizer = state.modules["net"], state.optimizers["net"]
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = 0.1 / (step + 1)
    x = torch.arange(16.0).reshape(2, 8) / (step + 3)
    net(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    net.seen += step + 1
    state.plain["counter"].value += 0.1
    state.buffers = state.buffers or {}
    state.buffers.clear()
    state.buffers["ids"] = torch.arange(step + 2)
    state.buffers["mask"] = torch.tensor([True, False])


def facts(state: TrainState) -> dict:
    """All there is, bit by bit; frozen parameters and derived buffers aside."""
    net, optimizer = state.modules["net"], state.optimizers["net"]
    found = {name: value.tolist() for name, value in net.state_dict().items() if "frozen" not in name}
    for index, group in enumerate(optimizer.param_groups):
        found[f"lr {index}"], found[f"betas {index}"] = float(group["lr"]), group.get("betas")
    for index, parameter in enumerate(net.parameters()):
        for key, value in optimizer.state.get(parameter, {}).items():
            found[f"{index} {key}"] = (value.tolist(), str(value.dtype)) if torch.is_tensor(value) else value
    found["counter"] = state.plain["counter"].value
    found |= {f"buffer {name}": value.tolist() for name, value in state.buffers.items()}
    return found


def stage_at(path: Path, **changes) -> StageDir:
    return tiny.stage_dir(path, SPEC, **changes)


def checkpointer(path: Path, state: TrainState, mode: str = "sync", **changes) -> Checkpointer:
    return Checkpointer(stage_at(path, **changes), Ranks(), state, SaveMode(mode))


def saved_names(path: Path) -> list[str]:
    return sorted(os.listdir(path / "state"))


def save_and_finish(saver: Checkpointer, position: Position) -> None:
    saver.save(position)
    saver.finish()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loaded_state_is_the_saved_one_bit_for_bit_and_goes_on_the_same(tmp_path, mode, optimizer):
    state = make_state(1, optimizer)
    for step in range(3):
        work(state, step)
    wanted, saver = facts(state), checkpointer(tmp_path, state, mode)
    saver.save(Position(3))
    work(state, 3)
    saver.finish()
    after = facts(state)
    loaded = make_state(2, optimizer)
    frozen = loaded.modules["net"].frozen.weight.clone()
    assert checkpointer(tmp_path, loaded).load_latest() == Position(3)
    assert facts(loaded) == wanted
    assert torch.equal(loaded.modules["net"].frozen.weight, frozen)
    assert loaded.modules["net"].derived.tolist() == [2.0, 2.0]
    loaded.modules["net"].frozen.load_state_dict(state.modules["net"].frozen.state_dict())
    work(loaded, 3)
    assert facts(loaded) == after


def test_without_room_for_a_copy_training_waits(tmp_path, monkeypatch, capfd):
    state = make_state(1, "adamw")
    work(state, 0)
    own = tensors_of(state)
    buffers = HostBuffers()
    need = buffers.further_bytes(own)
    assert need == sum(value.nbytes for value in own.values())
    saver = checkpointer(tmp_path, state, "async")
    for free, step, is_async in ((need / 2, 1, 0.0), (1e9, 2, 1.0), (need / 2, 3, 1.0)):
        monkeypatch.setattr("charter.train.checkpoint.free_memory_bytes", lambda free=free: free)
        state.buffers.clear()
        save_and_finish(saver, Position(step))
        # The third copy goes where the second one lies.
        assert saver.metrics()["checkpoint_async"] == is_async
    assert (
        capfd.readouterr().err == "checkpoints are written while training waits: no room for a copy in system memory\n"
    )
    buffers.copy(own)
    assert buffers.further_bytes(own) == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_moments_in_8_bits_come_back_bit_for_bit_and_go_on_the_same(tmp_path, mode):
    def large(seed):
        torch.manual_seed(seed)
        net = nn.Linear(128, 64)
        return TrainState(modules={"net": net}, optimizers={"net": adamw_8bit(list(net.parameters()))})

    def go_on(state):
        net, optimizer = state.modules["net"], state.optimizers["net"]
        for step in range(3):
            net(torch.arange(256.0).reshape(2, 128) / (step + 3)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {name: value.tolist() for name, value in tensors_of(state).items()}

    first, second = large(1), large(2)
    go_on(first)
    formats = {value.dtype for value in tensors_of(first).values()}
    assert torch.uint8 in formats
    save_and_finish(checkpointer(tmp_path, first, mode), Position(3))
    assert checkpointer(tmp_path, second).load_latest() == Position(3)
    assert go_on(first) == go_on(second)


def test_what_the_state_became_after_a_background_save_began_is_not_in_it(tmp_path):
    state = make_state(1)
    saver = checkpointer(tmp_path, state, "async")
    for step in range(4):
        work(state, step)
        wanted = facts(state)
        saver.save(Position(step + 1))
        with torch.no_grad():
            for parameter in state.modules["net"].parameters():
                parameter.zero_()
            for entries in state.optimizers["net"].state.values():
                entries["exp_avg"].zero_()
        state.plain["counter"].value = 0.0
        state.buffers["ids"].zero_()
        saver.finish()
        loaded = make_state(2)
        assert checkpointer(tmp_path, loaded).load_latest() == Position(step + 1)
        assert facts(loaded) == wanted
        state = loaded
        saver.state = state


def test_an_optimizer_that_has_not_stepped_can_be_saved_and_loaded(tmp_path):
    state = make_state(1)
    checkpointer(tmp_path, state).save(Position(0, 1))
    loaded = make_state(2)
    work(loaded, 0)
    loaded.plain["counter"].value = 7.0
    assert checkpointer(tmp_path, loaded).load_latest() == Position(0, 1)
    assert not loaded.optimizers["net"].state
    assert loaded.plain["counter"].value == state.plain["counter"].value
    assert loaded.buffers == {}


def test_no_checkpoint_leaves_the_state_alone(tmp_path):
    state = make_state(1)
    before = facts(state)
    assert checkpointer(tmp_path, state).load_latest() is None
    assert facts(state) == before


def test_the_newest_position_is_taken_parts_after_their_step(tmp_path):
    state = make_state(1)
    saver = checkpointer(tmp_path, state, keep_last=9)
    for position in (Position(9), Position(10, 2), Position(10), Position(10, 1)):
        saver.save(position)
    assert saved_names(tmp_path) == ["step-00000009", "step-00000010", "step-00000010-1", "step-00000010-2"]
    assert saver.load_latest() == Position(10, 2)
    saver.set_aside_after(10)
    assert saver.load_latest() == Position(10)
    assert saver.load_latest() == Position(10)
    assert "step-00000010-2.undone-1" in saved_names(tmp_path)
    saver.save(Position(10, 1))
    assert saver.load_latest() == Position(10, 1)


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def test_every_flipped_bit_and_every_truncation_of_every_file_is_noticed(tmp_path, capsys):
    state = make_state(1)
    work(state, 0)
    saver = checkpointer(tmp_path, state, keep_last=9)
    saver.save(Position(1))
    saver.save(Position(2))
    newest = tmp_path / "state" / "step-00000002"
    files = [path for path in newest.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {".metadata", "state.json", "buffers.safetensors", "manifest.json"}
    tried = 0
    for path in files:
        whole = path.read_bytes()
        bits = len(whole) * 8
        for damage in [*range(0, bits, max(1, bits // 12)), *(f"cut {size}" for size in (0, 1, len(whole) // 2, -1))]:
            if isinstance(damage, int):
                flip(path, damage)
            else:
                path.write_bytes(whole[: int(damage[4:])])
            assert checkpointer(tmp_path, make_state(2)).load_latest() == Position(1), (path.name, damage)
            (aside,) = (tmp_path / "state").glob("step-00000002.damaged-*")
            aside.rename(newest)
            path.write_bytes(whole)
            tried += 1
    assert tried >= 60
    assert checkpointer(tmp_path, make_state(2)).load_latest() == Position(2)
    assert capsys.readouterr().err.count("step-00000002 is damaged") == tried


def hostile(trace: Path) -> bytes:
    """A pickle that makes a directory when it is opened."""
    return f"cos\nmkdir\n(V{trace}\ntR.".encode()


def test_a_pickle_is_not_opened_before_its_hash_is_found_right(tmp_path):
    saver = checkpointer(tmp_path, make_state(1), keep_last=9)
    saver.save(Position(1))
    saver.save(Position(2))
    (tmp_path / "state" / "step-00000002" / ".metadata").write_bytes(hostile(tmp_path / "ran"))
    assert checkpointer(tmp_path, make_state(2)).load_latest() == Position(1)
    assert not (tmp_path / "ran").exists()
    aside = tmp_path / "state" / "step-00000002.damaged-1"
    with suppress(AttributeError):
        saved_tensors(aside)
    assert (tmp_path / "ran").exists(), "the pickle would have run"


def test_another_architecture_is_refused_by_name(tmp_path):
    state = make_state(1)
    work(state, 0)
    checkpointer(tmp_path, state).save(Position(1))
    wider = make_state(1)
    wider.modules["net"].first.bias = nn.Parameter(torch.zeros(9))
    wider.optimizers["net"] = OPTIMIZERS["adamw"]([p for p in wider.modules["net"].parameters() if p.requires_grad])
    with pytest.raises((DataError, RuntimeError), match=r"first\.bias is \(8,\) in the checkpoint|size"):
        checkpointer(tmp_path, wider).load_latest()
    more = make_state(1)
    more.modules["critic"] = nn.Linear(2, 2)
    with pytest.raises(DataError, match=r"of its tensors it lacks modules/critic/bias, modules/critic/weight"):
        checkpointer(tmp_path, more).load_latest()
    less = make_state(1)
    less.optimizers["net"] = OPTIMIZERS["adamw"](list(less.modules["net"].first.parameters()))
    with pytest.raises(DataError, match=r"has also .*modules/net/tied.bias"):
        checkpointer(tmp_path, less).load_latest()
    half = make_state(1)
    half.modules["net"].to(torch.float64)
    with pytest.raises(DataError, match=r"torch\.float32 in the checkpoint, where torch\.float64 is expected"):
        checkpointer(tmp_path, half).load_latest()
    other = make_state(1)
    other.plain = {"controller": Counter()}
    with pytest.raises(DataError, match="of its components it lacks controller; has also counter"):
        checkpointer(tmp_path, other).load_latest()


def test_a_checkpoint_of_another_run_is_refused_saying_what_differs(tmp_path):
    identity = {"spec": {"learning_rate": 0.1}, "inputs": {"init": ["aaaa"]}, "seed": 1}
    state = make_state(1)
    checkpointer(tmp_path, state, identity=identity).save(Position(1))
    now = {**identity, "spec": {"learning_rate": 0.2}, "inputs": {"init": ["bbbb"]}}
    other = checkpointer(tmp_path, state, identity=now, fingerprint="b" * 64)
    with pytest.raises(DataError, match=r"another run(.|\n)*input init(.|\n)*learning_rate(.|\n)*0\.1(.|\n)*0\.2"):
        other.load_latest()
    assert saved_names(tmp_path) == ["step-00000001"]


def test_a_checkpoint_of_more_processes_needs_reshard(tmp_path):
    state = make_state(1)
    saver = checkpointer(tmp_path, state)
    text = saver._files.manifest_text
    saver._files.manifest_text = lambda *args, **more: text(*args, **{**more, "world_size": 4})
    saver.save(Position(1))
    with pytest.raises(DataError, match=r"written by 4 processes, and this stage has 1(.|\n)*--reshard"):
        checkpointer(tmp_path, state).load_latest()
    frozen = {"threads": 1, "device": "cpu", "resharded": "at step 1"}
    assert checkpointer(tmp_path, state, frozen=frozen).load_latest() == Position(1)


def test_an_error_of_the_thread_comes_out_and_the_next_save_works(tmp_path, monkeypatch):
    state = make_state(1)
    saver = checkpointer(tmp_path, state, "async")
    saver.save(Position(1))
    saver.finish()
    from charter.artifacts import faults

    monkeypatch.setattr(faults, "_count", 0)
    monkeypatch.setenv("CHARTER_FAULT_AT", "3:enospc")
    saver.save(Position(2))
    with pytest.raises(DataError, match="disk full"):
        saver.finish()
    monkeypatch.delenv("CHARTER_FAULT_AT")
    assert saved_names(tmp_path) == ["step-00000001"]
    saver.save(Position(2))
    saver.finish()
    assert saved_names(tmp_path) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.thorough)])
def test_a_full_disk_at_every_action_leaves_the_old_one_and_no_trace(tmp_path, monkeypatch, mode):
    from charter.artifacts import faults

    state = make_state(1)
    saver = checkpointer(tmp_path, state, mode, keep_last=1)
    saver.save(Position(1))
    saver.finish()
    log = tmp_path / "actions"
    monkeypatch.setenv("CHARTER_FAULT_LOG", str(log))
    saver.save(Position(2))
    saver.finish()
    monkeypatch.delenv("CHARTER_FAULT_LOG")
    count = len(log.read_text().splitlines())
    failed = 0
    for action in range(1, count + 1):
        path = tmp_path / f"at-{action}"
        saver = checkpointer(path, state, mode, keep_last=1)
        saver.save(Position(1))
        saver.finish()
        monkeypatch.setattr(faults, "_count", 0)
        monkeypatch.setenv("CHARTER_FAULT_AT", f"{action}:enospc")
        try:
            saver.save(Position(2))
            saver.finish()
        except (DataError, OSError):
            failed += 1
        monkeypatch.delenv("CHARTER_FAULT_AT")
        assert not [name for name in saved_names(path) if name.startswith(".tmp")]
        again = checkpointer(path, make_state(2), mode, keep_last=1)
        assert again.load_latest() in (Position(1), Position(2))
        again.save(Position(3))
        again.finish()
        assert saved_names(path) == ["step-00000003"]
    assert failed == count


def test_retention_keeps_the_last_every_nth_the_best_and_what_is_pinned(tmp_path):
    saver = checkpointer(tmp_path, make_state(1), keep_last=2, keep_every=4, keep_best=True)
    for step in range(1, 11):
        saver.save(Position(step), metric=-abs(step - 3.0))
        if step == 6:
            (tmp_path / "state" / "step-00000006" / "pinned").touch()
    assert [int(name[5:]) for name in saved_names(tmp_path)] == [3, 4, 6, 8, 9, 10]


def test_a_value_that_is_not_json_is_named(tmp_path):
    state = make_state(1)
    state.plain["counter"].value = float("nan")
    with pytest.raises(StageError, match="cannot be saved"):
        checkpointer(tmp_path, state).save(Position(1))


def test_the_manifest_says_what_the_checkpoint_is(tmp_path):
    checkpointer(tmp_path, make_state(1)).save(Position(5, 2), metric=0.25)
    manifest = json.loads((tmp_path / "state" / "step-00000005-2" / "manifest.json").read_text())
    assert {key: manifest[key] for key in ("step", "part", "world_size", "metric", "stage", "fingerprint")} == {
        "step": 5, "part": 2, "world_size": 1, "metric": 0.25, "stage": "sft", "fingerprint": "a" * 64,
    }  # fmt: skip
    assert manifest["frozen"] == {"threads": 1, "device": "cpu"}


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.thorough), "async"])
def test_a_kill_at_every_durable_action_leaves_a_whole_checkpoint(tmp_path, mode):
    from checkpoint_ranks import saves_killed_at

    log = saves_killed_at(tmp_path / "whole", mode, None)
    first, actions = (max(i for i, line in enumerate(log, 1) if f"step-{step:08d}" in line) for step in (1, 3))
    for action in range(first + 1, actions + 1):
        path = tmp_path / f"at-{action}"
        saves_killed_at(path, mode, f"{action}:{'before' if action % 2 else 'after'}")
        state = TrainState(modules={"net": nn.Linear(4, 4)}, optimizers={})
        found = checkpointer(path, state, keep_last=1).load_latest()
        assert found in (Position(1), Position(2), Position(3)), log[action - 1]
        assert state.buffers["step"].item() == found.step
        assert not [name for name in saved_names(path) if name.startswith(".")]


def test_a_file_system_that_is_full_leaves_what_was_there_and_the_stage_goes_on_when_it_is_not(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        state = make_state(1)
        state.buffers["rollout"] = torch.zeros(300_000)
        for mode in ("sync", "async"):
            saver = checkpointer(small / mode, state, mode, keep_last=1)
            saver.save(Position(1))
            saver.finish()
            filler = small / "filler"
            free = free_bytes(small)
            filler.write_bytes(bytes(free - 400_000))
            for expected in (saver._files.expected_bytes, lambda: 0):
                saver._files.expected_bytes = expected
                with pytest.raises(DataError, match=r"disk full: (.|\n)*free some space"):
                    save_and_finish(saver, Position(2))
                assert saved_names(small / mode) == ["step-00000001"]
            filler.unlink()
            saver.save(Position(2))
            saver.finish()
            assert checkpointer(small / mode, make_state(2)).load_latest() == Position(2)
            for path in (small / mode / "state").iterdir():
                durable.discard_dir(path)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def train_while_a_save_stands_still(path: Path, told) -> None:
    """Train with a checkpoint every 5 steps, of which the second is never done; tell every step, and every wait."""
    publish, wait = Checkpointer._publish, Background.wait

    def stand_still(self, position, content):
        if position > Position(5):
            Event().wait()
        publish(self, position, content)

    def wait_aloud(self):
        told.send("waits")
        return wait(self)

    Checkpointer._publish, Background.wait = stand_still, wait_aloud
    state = make_state(1)
    saver = checkpointer(path, state, "async")
    for step in range(1, 40):
        work(state, step - 1)
        told.send(step)
        if step % 5 == 0:
            saver.save(Position(step))


def test_a_kill_in_a_slow_save_costs_two_intervals_at_most(tmp_path):
    stage_at(tmp_path)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=train_while_a_save_stands_still, args=(tmp_path, theirs), daemon=True
    )
    process.start()
    theirs.close()
    heard = []
    while heard.count("waits") < 2:
        heard.append(ours.recv())
    assert heard == [*range(1, 11), "waits", *range(11, 16), "waits"], "no step beside two saves"
    process.kill()
    process.join()
    assert checkpointer(tmp_path, make_state(2)).load_latest() == Position(5)
