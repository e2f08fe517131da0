"""Every setting of a stage that trains one model reaches its training, and its resume, on a very small real model."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import farthest, metrics, run, run_in_two, stage, weights

from charter.artifacts.draws import draw_seed
from charter.errors import DataError, InterruptedRunError
from charter.models.language_model import load_language_model
from charter.models.preference import load_preference_model
from charter.models.ranks import Ranks
from charter.spec.layout import Adapter
from charter.spec.stage_base import Guard
from charter.train import dpo, judge, ppo, preference_model, sft, supervised
from charter.train.checkpoint import Checkpointer
from charter.train.loop import (
    ROLL_BACKS,
    BeginAgainError,
    DivergedError,
)
from charter.train.models import starting_model, trained_model
from charter.train.optimizers import make_optimizer
from charter.train.pretrain import language_loss
from charter.train.setup import set_up
from charter.train.supervised import SupervisedTask

pytestmark = pytest.mark.torch
THOROUGH = pytest.mark.thorough
MODULES = {"sft": sft, "preference_model": preference_model, "dpo": dpo, "judge": judge, "ppo": ppo}


@pytest.fixture
def trained(engine_inputs, tmp_path):
    """(kind, layout, changes) -> the finished stage."""
    count = iter(range(100))

    def make(kind, *, frozen=None, parts=None, **changes):
        found = stage(engine_inputs, tmp_path / f"{kind}-{next(count)}", kind, frozen=frozen, **changes)
        return run(found, MODULES[kind]) if parts is None else run_in_two(found, MODULES[kind], parts=parts)

    return make


@pytest.fixture
def task(engine_inputs, tmp_path):
    """(name, changes) -> SFT as a task whose losses a test may poison, over 16 rows of 12 tokens."""

    def make(name="stage", *, frozen=None, **changes):
        found = stage(engine_inputs, tmp_path / name, "sft", frozen=frozen, **({"steps": 6} | changes))
        setup = set_up(found)
        model = trained_model(setup, starting_model(setup.job), setup.job.spec, dropout=setup.job.spec.dropout)
        ids_NT = torch.randint(3, 400, (16, 12), generator=torch.Generator().manual_seed(1))

        def loss_of(rows, step):
            ids_BT = ids_NT[list(rows)]
            everything = torch.ones_like(ids_BT, dtype=torch.bool)
            return language_loss(model.parallel.call, ids_BT, everything, dtype="fp32", device=setup.device)

        optimizer = make_optimizer([(model.parallel.trained_parameters(), 1e-3)], setup.job.spec)
        return SupervisedTask(setup, model.parallel, optimizer, setup.job.spec, 16, setup.job.spec.steps, loss_of)

    return make


def whole(task):
    return torch.cat([value.flatten() for value in task.parallel.module.state_dict().values()])


def poison(task, steps=(), rows=()):
    """Losses that are not a number at some steps, or wherever some rows are read."""
    clean, read = task.loss_of, []

    def loss_of(chosen, step):
        read.append(tuple(chosen))
        found = clean(chosen, step)
        return replace(found, loss_sum=found.loss_sum * float("nan")) if step in steps or {*chosen} & {*rows} else found

    task.loss_of = loss_of
    return read


def test_a_step_is_the_mean_over_its_terms_clipped_and_counted(task):
    made = task(gradient_clip=1e9)
    found = []
    made.optimizer.step = lambda: found.append([p.grad.clone() for p in made.parallel.module.parameters()])
    made.setup.stage.report = lambda *arguments: None
    from charter.artifacts.checkpoints import Position

    report = made.run_part(Position(0, 0))
    loss = made.loss_of(made._own_rows(0), 0)
    (loss.loss_sum / loss.terms).backward()
    wanted = [p.grad for p in made.parallel.module.parameters()]
    assert loss.terms == 8 * 11
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found[0], wanted, strict=True))
    assert report.metrics["loss"] == pytest.approx(loss.loss_sum.item() / loss.terms)
    norm = torch.cat([item.flatten() for item in wanted]).norm().item()
    assert report.metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    assert report.counters == {"tokens": 8 * 12}
    assert report.score == -report.metrics["loss"]


def test_gradients_are_clipped_to_their_longest(task):
    made = task(gradient_clip=1e-6, steps=1)
    made.train()
    squares = sum((item["exp_avg"] ** 2).sum().item() for item in made.optimizer.state.values())
    assert squares**0.5 == pytest.approx((1 - 0.9) * 1e-6, rel=1e-3), "the first moment is 1 - beta1 of the gradient"


def test_gradients_are_exchanged_once_for_each_step(task, monkeypatch):
    made, waited = task(frozen={"micro_batch": 2}), []
    real = made.parallel.accumulating
    monkeypatch.setattr(made.parallel, "accumulating", lambda: (waited.append(1), real())[1])
    made._accumulate(0)
    assert len(waited) == 3, "all but the last of four micro-batches"


@pytest.mark.parametrize("kind", ["sft", "preference_model", "dpo", "judge"])
def test_micro_batches_add_up_to_the_whole_batch(trained, kind):
    one, several = trained(kind), trained(kind, frozen={"micro_batch": 3})
    for first, second in zip(metrics(one), metrics(several), strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=1e-3)
        assert second["gradient_norm"] == pytest.approx(first["gradient_norm"], rel=2e-2, abs=1e-5)
    assert farthest(weights(one), weights(several)) < 2e-3


def test_a_loss_that_is_not_finite_stops_the_stage_with_the_weights_of_the_step_before(task):
    made, clean = task("a"), task("b", checkpoint_every=1)
    poison(made, steps={3})
    with pytest.raises(DivergedError, match="step 4: the loss or its gradient is not finite"):
        made.train()
    poison(clean, steps={3})
    clean.guard.settings = Guard(on_divergence="skip", most=1)
    before = []
    real = clean.run_part
    clean.run_part = lambda at: (before.append(whole(clean).clone()), real(at))[1]
    clean.train()
    assert torch.equal(whole(made), before[3])
    assert torch.equal(before[3], before[4]), "the poisoned update is left out"
    assert clean.guard.skipped == 1
    assert metrics(clean.setup.stage)[-1]["skipped_steps"] == 1.0


def test_divergences_are_counted_over_a_resume(task):
    """One may be left out; a second one stops the stage, whether it was resumed in between or not."""
    for resumed in (False, True):
        name = f"resumed-{resumed}"
        made = task(name, guard=Guard(on_divergence="skip", most=1))
        poison(made, steps={1, 4})
        if resumed:
            asked = iter(range(99))
            made.setup.stage._should_stop = lambda asked=asked: next(asked) >= 2
            with pytest.raises(InterruptedRunError, match="stopped at step 3"):
                made.train()
            made = task(name, guard=Guard(on_divergence="skip", most=1))
            poison(made, steps={1, 4})
        with pytest.raises(DivergedError, match=r"step 5.*divergence 2 of at most 1"):
            made.train()


BACK = Guard(on_divergence="roll_back", roll_back_steps=2, skip_steps=3, most=2)


def diverging(task, name="stage", **changes):
    """A task of 7 steps whose loss is not a number where the data of step 4 are read, and what it reads."""
    made = task(name, guard=BACK, steps=7, **changes)
    bad = (4, made._own_rows(4))
    clean, read = made.loss_of, []

    def loss_of(rows, step):
        read.append((step, list(rows)))
        found = clean(rows, step)
        return replace(found, loss_sum=found.loss_sum * float("nan")) if read[-1] == bad else found

    made.loss_of = loss_of
    return made, read


def test_training_goes_back_and_around_what_made_it_diverge(task):
    """It diverges at step 4 (from 0): back to step 2, where from now on the data of three steps later are read."""
    made, read = diverging(task, checkpoint_every=1)
    made.train()
    assert [step for step, _ in read] == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6]
    made.guard.roll_backs = ()
    assert [rows for _, rows in read] == [made._own_rows(step) for step in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert [line["step"] for line in metrics(made.setup.stage)] == [1, 2, 3, 4, 5, 6, 7]
    kept = {path.name for path in (made.setup.stage.path / "state").iterdir()}
    assert {"step-00000006", "step-00000007"} <= kept
    assert any("step-00000004" in name for name in kept - {"step-00000004"}), "what was left is set aside, not lost"


@pytest.mark.parametrize("stopped_after", [pytest.param(4, marks=THOROUGH), 5, pytest.param(8, marks=THOROUGH)])
def test_a_resume_around_a_roll_back_gives_the_same_bits(task, stopped_after):
    settings = {"checkpoint_every": 1, "dropout": 0.1}
    undisturbed, _ = diverging(task, "undisturbed", **settings)
    undisturbed.train()
    assert len(undisturbed.guard.roll_backs) == 1
    stopped, _ = diverging(task, "stopped", **settings)
    asked = iter(range(99))
    stopped.setup.stage._should_stop = lambda: next(asked) + 1 >= stopped_after
    with pytest.raises(InterruptedRunError):
        stopped.train()
    torch.manual_seed(5)
    resumed, _ = diverging(task, "stopped", **settings)
    resumed.train()
    assert torch.equal(whole(resumed), whole(undisturbed))
    lines = [metrics(item.setup.stage) for item in (resumed, undisturbed)]
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]


def test_checkpoints_of_before_a_roll_back_are_not_taken_again(task):
    """A kill between the decision and the renaming of younger checkpoints: the next start renames them."""
    made, _ = diverging(task, checkpoint_every=1)
    made.train()
    again, _ = diverging(task, "killed", checkpoint_every=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpointer, "set_aside_after", lambda self, step: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            again.train()
    assert (again.setup.stage.path / "state" / "step-00000004").exists()
    resumed, read = diverging(task, "killed", checkpoint_every=1)
    resumed.train()
    assert [step for step, _ in read] == [2, 3, 4, 5, 6]
    assert torch.equal(whole(resumed), whole(made))


def test_going_back_before_the_first_checkpoint_begins_again_and_keeps_the_decision(task):
    made, _ = diverging(task, checkpoint_every=100)
    with pytest.raises(BeginAgainError, match=r"step 5 diverged; going back to step 2.*starts from the beginning"):
        made.train()
    again, read = diverging(task, checkpoint_every=100)
    again.train()
    assert [item.resume_from for item in again.guard.roll_backs] == [2]
    again.guard.roll_backs = ()
    assert [rows for _, rows in read] == [again._own_rows(step) for step in (0, 1, 5, 6, 7, 8, 9)]


def test_a_loss_that_overflows_by_itself_is_the_guards_in_half_precision_too(task):
    """The scale of fp16 adapts to gradients that overflow; a loss that is not a number no scale can mend."""
    made = task(dtype="fp16")
    poison(made, steps={1})
    with pytest.raises(DivergedError, match="step 2"):
        made.train()
    endless = task("endless", dtype="fp16", steps=40)
    clean = endless.loss_of

    def loss_of(rows, step):
        found = clean(rows, step)
        return replace(found, loss_sum=found.loss_sum + (_infinite_gradient(endless) if step else 0.0))

    endless.loss_of = loss_of
    with pytest.raises(DivergedError, match="step 18"):
        endless.train()


def test_the_scale_of_half_precision_is_restored(task):
    made = task(dtype="fp16", steps=2)
    poison(made)
    made.scaler.factor = 8.0
    asked = iter(range(9))
    made.setup.stage._should_stop = lambda: next(asked) >= 0
    with pytest.raises(InterruptedRunError):
        made.train()
    again = task(dtype="fp16", steps=2)
    again.train()
    assert (again.scaler.factor, again.scaler._good_updates) == (8.0, 2)


def _infinite_gradient(task):
    """0, with a gradient that is infinite at any scale."""
    first = next(iter(task.parallel.module.parameters())).flatten()[0]
    return torch.sqrt((first - first.detach()).abs())


def test_dropout_draws_differ_between_steps_micro_batches_and_processes(task, monkeypatch):
    made = task(frozen={"micro_batch": 4})
    seeds = []
    real = supervised.seeded
    monkeypatch.setattr(supervised, "seeded", lambda seed: (seeds.append(seed), real(seed))[1])
    made._accumulate(0)
    made._accumulate(1)
    assert seeds[0] == draw_seed(7, "sft", "dropout", 0, 0), "one process has no number in its draws"
    made.setup.ranks = Ranks(rank=1, world_size=2, data_rank=1, data_size=2)
    made._accumulate(0)
    assert len(seeds) == 5
    assert len(set(seeds)) == 5


def test_dropout_changes_training_and_resumes(trained):
    plain, dropped = trained("sft"), trained("sft", dropout=0.3)
    assert farthest(weights(plain), weights(dropped)) > 1e-4
    again = trained("sft", dropout=0.3, parts=2)
    assert farthest(weights(dropped), weights(again)) == 0.0


def test_eight_bit_moments_train_and_resume(trained):
    pytest.importorskip("bitsandbytes")
    exact, found = trained("sft"), trained("sft", optimizer="adamw_8bit")
    assert 0 < farthest(weights(exact), weights(found)) < 5e-3
    assert farthest(weights(found), weights(trained("sft", optimizer="adamw_8bit", parts=2))) == 0.0


def test_packed_rows_have_the_loss_of_their_conversations(trained):
    """All 8 conversations are a step either way: one batch of 8 rows, or of the one row that holds them."""
    plain = trained("sft", steps=3, seq_len=128)
    packed = trained("sft", steps=3, seq_len=128, packing=True, global_batch=1)
    tokens = [line["tokens"] for line in metrics(plain)]
    found = metrics(packed)
    if [line["tokens"] for line in found] != tokens:
        pytest.fail(f"the packed batch is not the same conversations: {[line['tokens'] for line in found]} {tokens}")
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in metrics(plain)], rel=1e-4)
    again = trained("sft", steps=3, seq_len=128, packing=True, global_batch=1, parts=2)
    assert farthest(weights(packed), weights(again)) == 0.0


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputation_changes_no_bit_of_a_stage(trained, recompute):
    settings = {"dropout": 0.2, "steps": 2}
    plain, found = trained("sft", **settings), trained("sft", **settings, frozen={"recompute": recompute})
    assert farthest(weights(plain), weights(found)) == 0.0


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("bf16", "sft"),
        ("fp16", "preference_model"),
        *(
            pytest.param(dtype, kind, marks=THOROUGH)
            for dtype, kind in (("fp16", "sft"), ("bf16", "preference_model"), ("bf16", "ppo"), ("fp16", "ppo"))
        ),
    ],
)
def test_half_precision_trains_near_fp32_and_resumes(trained, kind, dtype):
    exact, found = trained(kind), trained(kind, dtype=dtype)
    assert 0 < farthest(weights(exact), weights(found)) < 2e-2
    again = trained(kind, dtype=dtype, parts=2)
    assert farthest(weights(found), weights(again)) == 0.0


@pytest.mark.parametrize("kind", ["sft", pytest.param("ppo", marks=THOROUGH)])
def test_another_attention_gives_the_same_but_for_rounding(trained, kind):
    plain, found = trained(kind), trained(kind, frozen={"attention": "eager"})
    first, second = metrics(plain)[0], metrics(found)[0]
    name = "loss" if kind == "sft" else "reward_mean"
    assert second[name] == pytest.approx(first[name], rel=1e-3)


ADAPTER = Adapter(rank=4, alpha=8)


@pytest.mark.parametrize(
    "kind", ["sft", pytest.param("dpo", marks=THOROUGH), "preference_model", pytest.param("ppo", marks=THOROUGH)]
)
def test_adapters_train_resume_and_are_published_merged(trained, kind, engine_inputs):
    pytest.importorskip("peft")
    found = trained(kind, adapter=ADAPTER)
    from safetensors.torch import load_file

    base = load_file(str(engine_inputs / "base" / "model" / "model.safetensors"))
    held = weights(found)
    assert held.keys() == base.keys()
    changed = {name for name in held if not torch.equal(held[name], base[name])}
    assert changed == {name for name in base if "_proj" in name}
    load = load_preference_model if kind == "preference_model" else load_language_model
    load(found.outputs / "model")
    again = trained(kind, adapter=ADAPTER, parts=2)
    assert farthest(held, weights(again)) == 0.0
    if kind != "preference_model":
        own = load_file(str(found.outputs / "adapter" / "adapter_model.safetensors"))
        name = "model.layers.0.self_attn.q_proj"
        delta = own[f"base_model.model.{name}.lora_B.weight"] @ own[f"base_model.model.{name}.lora_A.weight"] * 2
        assert torch.allclose(held[f"{name}.weight"] - base[f"{name}.weight"], delta, atol=1e-6)


@pytest.mark.parametrize(("kind", "bits"), [("sft", 4), ("sft", 8), ("preference_model", 8)])
def test_an_adapter_over_a_small_base_is_published_whole(trained, kind, bits, engine_inputs):
    """What is published is what was trained: the base as its few bits have it, and the adapter added in."""
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    from safetensors.torch import load_file

    found = trained(kind, adapter=Adapter(rank=4, alpha=8, base_bits=bits), steps=2)
    base = load_file(str(engine_inputs / "base" / "model" / "model.safetensors"))
    held = weights(found)
    assert held.keys() == base.keys()
    assert all(value.dtype == torch.float32 for value in held.values())
    assert {name: value.shape for name, value in held.items()} == {name: value.shape for name, value in base.items()}
    assert 0 < farthest(held, base) < (0.06 if bits == 4 else 0.01)
    assert trained(kind, adapter=Adapter(rank=4, alpha=8, base_bits=bits), steps=2, parts=1).outputs.exists()


def test_checkpoints_that_the_roll_backs_do_not_explain_are_refused_and_kept(task):
    stopped, _ = diverging(task, "stopped", checkpoint_every=1)
    asked = iter(range(99))
    stopped.setup.stage._should_stop = lambda: next(asked) + 1 >= 8
    with pytest.raises(InterruptedRunError):
        stopped.train()
    state = stopped.setup.stage.path / "state"
    kept = sorted(path.name for path in state.iterdir())
    (stopped.setup.stage.path / ROLL_BACKS).unlink()
    resumed, _ = diverging(task, "stopped", checkpoint_every=1)
    with pytest.raises(DataError, match=r"does not belong to the roll-backs in roll_backs.json"):
        resumed.train()
    assert sorted(path.name for path in state.iterdir()) == kept
