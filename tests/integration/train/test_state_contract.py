"""Whatever training changes is in the checkpoint: every attribute of every component is compared over whole steps.

This finds the next forgotten KL controller: an attribute that a step changes and that is neither in the state nor
named below as derived fails the test.
"""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import tiny
from torch import nn

from charter.artifacts.checkpoints import Position
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import PreferenceModelStage, SftStage
from charter.train import preference_model
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch

NOT_STATE = ("meter", "stage", "checkpoints", "_counters", "_saved_at", "_clock", "generator", "first_pass")
"""Measures, logs, files, and a pass that an update would make again with the same bits: no result depends on them."""
SPEC = PpoStage(
    policy="p", reward="r", prompts=("q",), episodes=24, rollout_batch=8, minibatch=4, ppo_epochs=2, max_new_tokens=6,
    max_prompt_tokens=24, learning_rate=1e-3, value_learning_rate=1e-3, kl_target=1.0, kl_horizon=100, dtype="fp32",
)  # fmt: skip


def walk(value: object, path: str = "", seen: set[int] | None = None) -> dict[str, str]:
    """Every attribute below an object, by path, with a hash of what it holds."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return {path: hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()}
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return {path: repr(value)}
    if id(value) in seen:
        return {}
    seen.add(id(value))
    if isinstance(value, Mapping):
        items = [(str(key) if not isinstance(key, torch.Tensor) else str(index), item)
                 for index, (key, item) in enumerate(value.items())]  # fmt: skip
    elif isinstance(value, list | tuple):
        items = [(str(index), item) for index, item in enumerate(value)]
    elif isinstance(value, nn.Module):
        items = [*value.state_dict().items(), ("training", value.training)]
    elif hasattr(value, "__dict__") and type(value).__module__.startswith(("charter.", "torch.optim")):
        items = list(vars(value).items())
    else:
        return {}
    found: dict[str, str] = {}
    for name, item in items:
        if name not in NOT_STATE and not inspect.isroutine(item):
            found |= walk(item, f"{path}.{name}", seen)
    return found


def attributes(task) -> dict[str, str]:
    """All of a task, what the state holds first: an object is walked under the first path that leads to it."""
    seen: set[int] = set()
    return walk(task.state, ".state", seen) | walk(task, "", seen)


def state_paths(task) -> set[str]:
    """Attributes that the state object says it holds."""
    held = {f".state.modules.{name}" for name in task.state.modules}
    held |= {f".state.optimizers.{name}" for name in task.state.optimizers}
    held |= {f".state.buffers.{name}" for name in task.state.buffers}
    for name, component in task.state.plain.items():
        held |= {f".state.plain.{name}.{attribute}" for attribute in getattr(type(component), "STATE", ())}
    return held


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    place = tmp_path_factory.mktemp("contract")
    tiny.language_model().save(place / "base" / "model")
    for name, keys in (("pairs", ("id", "prompt", "chosen", "rejected")), ("prompts", ("id", "prompt"))):
        (place / name).mkdir()
        rows = [
            {
                "id": pair.id,
                "prompt": [{"role": "user", "content": pair.prompt[0].content}],
                "chosen": [{"role": "assistant", "content": pair.chosen}],
                "rejected": [{"role": "assistant", "content": pair.rejected}],
            }
            for pair in tiny.pairs()
        ]
        lines = [json.dumps({key: row[key] for key in keys}) for row in rows]
        (place / name / "records.jsonl").write_text("\n".join(lines) + "\n")
    spec = PreferenceModelStage(init="b", data=("d",), steps=4, global_batch=4, seq_len=64, dtype="fp32")
    stage = tiny.stage_dir(place / "pm", spec, {"init": place / "base", "data": place / "pairs"})
    preference_model.run(stage)
    return {"policy": place / "base", "reward": place / "pm" / "outputs", "prompts": place / "prompts"}


def task_of(path, made, **changes):
    setup = set_up(tiny.stage_dir(path, replace(SPEC, **changes), made))
    return ppo_task(setup)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"estimator": "rloo", "samples_per_prompt": 2},
        {"stop_update_kl": 1e-9},
        {"asynchrony": "one_step_off"},
        {"asynchrony": "in_flight", "max_age": 2},
    ],
)
def test_all_that_a_ppo_step_changes_is_in_the_state(made, tmp_path, changes):
    task = task_of(tmp_path / "stage", made, **changes)
    Loop(task.setup, task)
    places = [Position(step, part) for step in range(2) for part in range(task.parts)]
    before, changed, held = attributes(task), set(), state_paths(task)
    for place in places:
        task.run_part(place)
        held |= state_paths(task)
        after = attributes(task)
        changed |= {path for path in {*before, *after} if before.get(path) != after.get(path)}
        before = after
    assert any(path.startswith(".state.plain.kl_controller") for path in changed), "the controller has to adapt here"
    forgotten = {path for path in changed if not any(path == one or path.startswith(f"{one}.") for one in held)}
    assert not forgotten, sorted(forgotten)


def test_an_attribute_outside_the_state_is_found(made, tmp_path):
    task = task_of(tmp_path / "stage", made)
    before = attributes(task)
    task.sampler.setup.layout.__dict__["forgotten"] = 1.0
    changed = {path for path, value in attributes(task).items() if before.get(path) != value}
    assert changed == {".setup.layout.forgotten"}


def test_a_supervised_step_changes_its_state_only(made, tmp_path):
    from charter.models.language_model import load_language_model
    from charter.train.models import trained_model
    from charter.train.optimizers import make_optimizer
    from charter.train.pretrain import language_loss
    from charter.train.supervised import SupervisedTask

    spec = SftStage(init="b", data=("d",), steps=3, global_batch=4, seq_len=64, dtype="fp32")
    setup = set_up(tiny.stage_dir(tmp_path / "stage", spec, {}))
    trained = trained_model(setup, load_language_model(made["policy"] / "model"), spec)
    ids_NT = torch.randint(0, 400, (8, 16), generator=torch.Generator().manual_seed(1))

    def loss_of(rows, step):
        counted = torch.ones_like(ids_NT[list(rows)], dtype=torch.bool)
        return language_loss(trained.parallel.call, ids_NT[list(rows)], counted, dtype="fp32", device=setup.device)

    optimizer = make_optimizer([(trained.parallel.trained_parameters(), 1e-3)], spec)
    task = SupervisedTask(setup, trained.parallel, optimizer, spec, 8, 3, loss_of)
    Loop(setup, task)
    task.parallel.module.train()
    before = attributes(task)
    task.run_part(Position(0, 0))
    held = state_paths(task)
    changed = {path for path, value in attributes(task).items() if before.get(path) != value}
    assert any(path.startswith(".state.modules.model") for path in changed)
    assert not {path for path in changed if not any(path.startswith(one) for one in held)}
