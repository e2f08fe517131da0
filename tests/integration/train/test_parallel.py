"""Every layout computes what one process computes: losses, gradients, norms, weights, rollouts."""

from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from group import in_group

from charter.inference.generate import (
    SamplingSettings,
    generate,
)
from charter.models.engine_layout import StageLayout
from charter.models.language_model import (
    LanguageModel,
    new_language_model,
)
from charter.models.parallel import own_part, parallelize, plain_name
from charter.models.ranks import Ranks

ROUNDING = 1e-6
"""fp32: sums in another order."""
SETTINGS = SamplingSettings(max_new_tokens=4, min_new_tokens=4)
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13], [14, 15, 16]]
IDS = torch.arange(8 * 12).view(8, 12) % 400

LAYOUTS = {
    "ddp": StageLayout(world_size=2),
    "ddp-micro": StageLayout(world_size=2, micro_batch=1),
    "fsdp-kept": StageLayout(world_size=2, zero=2),
    "fsdp": StageLayout(world_size=2, zero=3),
    "fsdp-micro": StageLayout(world_size=2, zero=3, micro_batch=1),
    "fsdp-recompute": StageLayout(world_size=2, zero=3, recompute="full", offload="all"),
    "hsdp": StageLayout(world_size=4, zero=3, replicas=2),
    "hsdp-micro": StageLayout(world_size=4, zero=3, replicas=2, micro_batch=1),
    "tensor": StageLayout(world_size=2, tensor=2),
    "tensor-data": StageLayout(world_size=4, tensor=2),
    "tensor-fsdp": StageLayout(world_size=4, tensor=2, zero=3),
    "sequence": StageLayout(world_size=2, tensor=2, sequence_parallel=True),
    "sequence-fsdp": StageLayout(world_size=4, tensor=2, zero=3, sequence_parallel=True, recompute="full"),
}


def model(*, tied: bool) -> LanguageModel:
    architecture = replace(tiny.ARCHITECTURE, tied_embeddings=tied)
    return new_language_model(architecture, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=1)


def loss_of(call, ids_BT):
    logits_BTV = call(input_ids=ids_BT, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten())


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().numpy().copy()


def bytes_of_whole_gradients(parallel):
    """Bytes of gradients that a sharded model keeps unsharded between two passes."""
    states = [part._get_fsdp_state() for part in getattr(parallel, "_parts", ())]
    groups = [group for state in states for group in state._fsdp_param_groups]
    waiting = []
    for item in (item for group in groups for item in group.fsdp_params):
        own = getattr(item, "_unsharded_param", None)
        waiting += [item.unsharded_accumulated_grad, None if own is None else own.grad]
    return sum(0 if gradient is None else gradient.nbytes for gradient in waiting)


def step_of(ranks, layout, tied):
    """One step of a layout, with what must not depend on it."""
    language_model = model(tied=tied)
    parallel = parallelize(language_model.model, layout, ranks, dtype="fp32")
    own = IDS[ranks.data_rank :: ranks.data_size]
    parts = [own[start:stop] for start, stop in layout.micro_batches(len(own))]
    parallel.module.eval()
    parallel.warm(lambda: loss_of(parallel.call, own))
    assert all(item.grad is None for item in parallel.module.parameters())
    losses, kept = [], []
    for part in parts[:-1]:
        with parallel.accumulating():
            loss = loss_of(parallel.call, part)
            loss.backward()
        losses.append(loss.item())
        kept.append(bytes_of_whole_gradients(parallel))
    loss = loss_of(parallel.call, parts[-1])
    loss.backward()
    parallel.scale_gradients(1 / len(parts))
    losses.append(loss.item())
    gradients = {name: whole(item.grad) for name, item in parallel.module.named_parameters()}
    norm = parallel.clip(0.1).item()
    clipped = {name: whole(item.grad) for name, item in parallel.module.named_parameters()}
    with torch.no_grad():
        before = loss_of(parallel.module, IDS).item()
        for item in parallel.trained_parameters():
            item.add_(item.grad, alpha=-1.0)
        after = loss_of(parallel.module, IDS).item()
    held = [bytes_of_weights(parallel)]
    with parallel.gathered():
        answers = generate(language_model, PROMPTS, seeds=[1, 2, 3, 4], settings=SETTINGS).answer_BR
        held.append(bytes_of_weights(parallel))
    held.append(bytes_of_weights(parallel))
    weights = {name: value.numpy() for name, value in parallel.full_state_dict().items()}
    return {
        "loss": sum(losses) / len(losses),
        "gradients": gradients,
        "norm": norm,
        "clipped": clipped,
        "before": before,
        "after": after,
        "answers": answers.tolist(),
        "weights": weights,
        "whole_gradients": kept,
        "weight_bytes": held,
    }


def bytes_of_weights(parallel):
    """Bytes of the weights that this process has, as far as layers would find them now."""
    return sum(own_part(item).nbytes for item in parallel.module.parameters())


def steps_of(ranks, names, tied):
    return {name: step_of(ranks, LAYOUTS[name], tied) for name in names}


@pytest.fixture(scope="module")
def together():
    """(name, tied) -> what each process found of a layout's step. Layouts of one shape share their processes."""

    @cache
    def steps(world, tensor, tied):
        names = [name for name, layout in LAYOUTS.items() if (layout.world_size, layout.tensor) == (world, tensor)]
        return in_group(steps_of, world, names, tied, tensor=tensor)

    return lambda name, tied: [rank[name] for rank in steps(LAYOUTS[name].world_size, LAYOUTS[name].tensor, tied)]


@pytest.fixture(scope="module")
def alone():
    return {tied: step_of(Ranks(), StageLayout(), tied) for tied in (True, False)}


def largest_difference(found, expected):
    assert set(found) == set(expected)
    return max(abs(found[name] - expected[name]).max() for name in expected)


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.thorough)], ids=["tied", "untied"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_computes_what_one_process_does(name, tied, alone, together):
    layout, expected, found = LAYOUTS[name], alone[tied], together(name, tied)
    shares = found[:: layout.tensor]
    assert sum(item["loss"] for item in shares) / len(shares) == pytest.approx(expected["loss"], abs=ROUNDING)
    assert len({item["norm"] for item in found}) == 1
    for item in found:
        assert largest_difference(item["gradients"], expected["gradients"]) < ROUNDING
        assert largest_difference(item["clipped"], expected["clipped"]) < ROUNDING
        assert item["norm"] == pytest.approx(expected["norm"], rel=1e-5)
        assert item["before"] == pytest.approx(expected["before"], abs=ROUNDING)
        assert item["after"] == pytest.approx(expected["after"], abs=ROUNDING), "weights out of date after an update"
        assert item["answers"] == expected["answers"]
        assert not any(item["whole_gradients"]), "a process keeps its own part of the gradients alone"
        before, during, after = item["weight_bytes"]
        assert before == after, "after a rollout a process has its own part alone"
        assert during >= expected["weight_bytes"][0] / layout.tensor, "and all of it until the last token"
    assert largest_difference(found[0]["weights"], expected["weights"]) < ROUNDING
    assert all(item["weights"] == {} for item in found[1:])


def test_one_step_changes_the_loss(alone):
    assert alone[True]["norm"] > 0.2
    assert abs(alone[True]["after"] - alone[True]["before"]) > 1e-3
    assert set(alone[True]["weights"]) == set(model(tied=True).model.state_dict())


def test_wrappers_leave_no_trace_in_names():
    plain = "model.layers.0.mlp.weight"
    assert plain_name(f"module._orig_mod.{plain}") == plain
    assert plain_name("_fsdp_wrapped_module.model.layers.0._checkpoint_wrapped_module.mlp.weight") == plain
    assert plain_name("encoder.module.weight") == "encoder.module.weight"
