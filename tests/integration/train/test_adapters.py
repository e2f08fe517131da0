"""Adapters: what is trained, what is published, over bases in 16, 8 and 4 bits."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytestmark = pytest.mark.torch

import tiny
from group import in_group

from charter.errors import StageError
from charter.models.adapters import (
    add_adapter,
    has_adapter,
    merged_weights,
    published_weights,
    save_adapter,
)
from charter.models.engine_layout import StageLayout
from charter.models.parallel import cast_frozen, data_mesh, own_part, parallelize, shard
from charter.models.preference import ScalarModel
from charter.models.ranks import Ranks
from charter.models.runtime import precision
from charter.models.token_forward import token_losses
from charter.spec.layout import Adapter

IDS = torch.arange(24).view(2, 12)
ROUNDING = 1e-5


def adapter(bits=16):
    if bits != 16:
        pytest.importorskip("bitsandbytes")
    return Adapter(rank=4, alpha=8, base_bits=bits)


def logits(module):
    with torch.no_grad():
        return module(input_ids=IDS, use_cache=False).logits


def learn(module, call=None, ids=IDS):
    parallel = module if call is None else call
    optimizer = torch.optim.SGD([item for item in module.parameters() if item.requires_grad], lr=0.5)
    for _ in range(3):
        parallel(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_merged_weights_compute_what_base_and_adapter_do(bits):
    chosen, module = adapter(bits), tiny.language_model().model
    before = logits(module)
    frozen = module.model.embed_tokens.weight.detach().clone()
    add_adapter(module, chosen, seed=3)
    if bits == 16:
        assert torch.equal(logits(module), before)
    learn(module)
    trained = logits(module)
    assert (trained - before).abs().max() > 1e-3
    assert torch.equal(module.model.embed_tokens.weight, frozen)
    weights = published_weights(module, module.state_dict(), chosen)
    plain = tiny.language_model().model
    plain.load_state_dict(weights, strict=True)
    assert not has_adapter(plain)
    assert (logits(plain) - trained).abs().max() < ROUNDING
    start = tiny.language_model().model.state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(plain.state_dict()[name], start[name])


def test_only_adapter_and_head_are_trained_and_the_seed_decides_the_start():
    def scalar(seed):
        found = ScalarModel(tiny.language_model())
        add_adapter(found, adapter(), seed=seed)
        return found

    names = [name for name, item in scalar(1).named_parameters() if item.requires_grad]
    assert all(".lora_" in name or name.startswith("head.") for name in names)
    assert {"head.weight", "head.bias"} <= set(names)
    assert len(names) == 2 + 2 * 7 * 2
    first, again, other = (scalar(seed).state_dict() for seed in (1, 1, 2))
    matrix = "body.layers.0.self_attn.q_proj.lora_A.default.weight"
    assert torch.equal(first[matrix], again[matrix])
    assert not torch.equal(first[matrix], other[matrix])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_the_published_adapter_is_read_by_peft(tmp_path):
    from peft import PeftModel

    module = tiny.language_model().model
    add_adapter(module, adapter(), seed=3)
    learn(module)
    save_adapter(tmp_path / "adapter", module.state_dict(), module, adapter())
    read = PeftModel.from_pretrained(tiny.language_model().model, str(tmp_path / "adapter"))
    assert (logits(read) - logits(module)).abs().max() < ROUNDING


def test_the_published_settings_are_the_same_in_every_process(tmp_path):
    """peft keeps names in a set, whose order is another one in every process."""
    module = tiny.language_model().model
    save_adapter(tmp_path, module.state_dict(), module, adapter())
    names = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert len(names) == 7
    assert names == sorted(names)


def sharded(ranks, layout):
    module = tiny.language_model().model
    add_adapter(module, adapter(), seed=3)
    parallel = parallelize(module, layout, ranks, dtype="fp32")
    learn(module, parallel.call, IDS[ranks.data_rank :: ranks.data_size])
    return {name: value.numpy() for name, value in merged_weights(parallel.full_state_dict(), adapter()).items()}


def test_adapters_train_the_same_when_sharded():
    module = tiny.language_model().model
    add_adapter(module, adapter(), seed=3)
    learn(module)
    expected = merged_weights(module.state_dict(), adapter())
    for layout in (StageLayout(world_size=2), StageLayout(world_size=2, zero=3)):
        found = in_group(sharded, 2, layout)[0]
        assert found.keys() == expected.keys()
        assert all(abs(found[name] - expected[name].numpy()).max() < ROUNDING for name in expected)


def test_layouts_that_cannot_split_an_adapter_are_refused():
    module = tiny.language_model().model
    add_adapter(module, adapter(4), seed=3)
    with pytest.raises(StageError, match="cannot be sharded; use zero 0"):
        parallelize(module, StageLayout(world_size=2, zero=3), Ranks(), dtype="fp32")
    with pytest.raises(StageError, match="tensor 1"):
        parallelize(module, StageLayout(world_size=2, tensor=2), Ranks(), dtype="fp32")
    with pytest.raises(StageError, match="16, 8 or 4"):
        add_adapter(tiny.language_model().model, Adapter(rank=4, base_bits=5), seed=3)


@pytest.mark.parametrize("everything", [False, True])
def test_a_frozen_base_takes_half_the_bytes_in_sixteen_bits(everything):
    """Only what autocast would cast each time is cast once, so that the loss keeps its bits; under sharding all is."""
    ids_BT = torch.arange(24)[None]
    plain, small = tiny.language_model().model, tiny.language_model().model
    for module in (plain, small):
        add_adapter(module, adapter(), seed=1)
        for name, item in module.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(item, generator=torch.Generator().manual_seed(4))
    cast_frozen(small, torch.bfloat16, everything=everything)
    for name, item in small.named_parameters():
        halved = not item.requires_grad and (everything or "_proj" in name)
        assert item.element_size() == (2 if halved else 4), name
    if everything:
        return
    losses = []
    for module in (plain, small):
        with precision("bf16", torch.device("cpu")):
            loss = token_losses(module, ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)).loss_sum
        loss.backward()
        losses.append((loss.item(), [item.grad for item in module.parameters() if item.requires_grad]))
    assert losses[0][0] == losses[1][0]
    assert all(torch.equal(one, other) for one, other in zip(losses[0][1], losses[1][1], strict=True))
    assert all(item.dtype == torch.float32 for item in merged_weights(small.state_dict(), adapter()).values())


def test_whole_numbers_of_a_small_base_are_not_cast():
    layer = torch.nn.Linear(2, 2, bias=False)
    layer.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.uint8), requires_grad=False)
    cast_frozen(layer, torch.bfloat16, everything=True)
    assert layer.weight.dtype == torch.uint8


def sharded_base(ranks):
    """Loss and gradients' types under sharding of a base in 16 bits beside adapters in 32."""
    module = tiny.language_model().model
    add_adapter(module, adapter(), seed=1)
    cast_frozen(module, torch.bfloat16, everything=True)
    layout = StageLayout(world_size=2, zero=3)
    shard(module, layout, data_mesh(layout, ranks)[0], ranks, dtype=torch.bfloat16)
    with precision("bf16", torch.device("cpu")):
        loss = module(input_ids=IDS, labels=IDS, use_cache=False).loss
    loss.backward()
    bases = {own_part(item).dtype for item in module.parameters() if not item.requires_grad}
    return loss.item(), bases, {item.grad.dtype for item in module.parameters() if item.requires_grad}


def test_a_base_in_sixteen_bits_is_sharded_beside_its_adapter():
    for loss, bases, gradients in in_group(sharded_base, 2):
        assert bases == {torch.bfloat16}
        assert gradients == {torch.float32}
        with precision("bf16", torch.device("cpu")), torch.no_grad():
            whole = tiny.language_model().model(input_ids=IDS, labels=IDS, use_cache=False).loss.item()
        assert loss == pytest.approx(whole, rel=1e-2)
