"""Models filled after sharding equal models loaded whole, bit for bit; what does not fit is refused."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from group import in_group

from charter.errors import DataError, StageError
from charter.models import sharded_load
from charter.models.adapters import add_adapter, merged_weights
from charter.models.engine_layout import StageLayout
from charter.models.language_model import (
    empty_language_model,
    load_language_model,
    new_language_model,
    open_language_model,
)
from charter.models.parallel import data_mesh, own_part, parallelize, shard
from charter.models.preference import PreferenceModel, ScalarModel, load_preference_model
from charter.models.ranks import Ranks
from charter.models.sharded_load import tied_weights
from charter.spec.layout import Adapter

ADAPTER = Adapter(rank=4)

LAYOUTS = {
    (2, 1): [StageLayout(world_size=2), StageLayout(world_size=2, zero=3)],
    (4, 2): [StageLayout(world_size=4, tensor=2, zero=3)],
}


def saved(path, *, tied=True, shard_size=None):
    architecture = replace(tiny.ARCHITECTURE, tied_embeddings=tied)
    model = new_language_model(architecture, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=1)
    model.save(path)
    if shard_size:
        model.model.save_pretrained(str(path), max_shard_size=shard_size)
        (path / "model.safetensors").unlink(missing_ok=True)
    return path


def logits_of(module):
    with torch.no_grad():
        return module(input_ids=torch.arange(12)[None], use_cache=False).logits.numpy()


def filled(ranks, layouts, paths):
    found = []
    for layout in layouts:
        for path in paths:
            model = empty_language_model(path)
            assert all(item.is_meta for item in model.model.parameters())
            parallel = parallelize(model.model, layout, ranks, dtype="fp32", weights=path)
            buffers = {name: value.numpy().copy() for name, value in parallel.module.named_buffers()}
            weights = {name: value.numpy() for name, value in parallel.full_state_dict().items()}
            found.append((str(path), weights, buffers, len(tied_weights(parallel.module)), logits_of(parallel.module)))
    return found


@pytest.mark.parametrize(("world", "tensor"), LAYOUTS)
def test_a_model_filled_after_sharding_equals_one_loaded_whole(world, tensor, tmp_path):
    paths = [saved(tmp_path / "tied"), saved(tmp_path / "untied", tied=False, shard_size="100KB")]
    assert (paths[1] / "model.safetensors.index.json").exists()
    for rank, found in enumerate(in_group(filled, world, LAYOUTS[world, tensor], paths, tensor=tensor)):
        for path, weights, buffers, ties, logits in found:
            whole = load_language_model(paths[0].parent / path).model
            assert ties == len(tied_weights(whole))
            expected = dict(whole.named_buffers())
            assert expected
            assert buffers.keys() == expected.keys()
            assert all((buffers[name] == expected[name].numpy()).all() for name in buffers)
            assert abs(logits - logits_of(whole)).max() < 1e-6
            if rank == 0:
                state = whole.state_dict()
                assert weights.keys() == state.keys()
                assert all((weights[name] == state[name].numpy()).all() for name in weights)


def fill(path):
    parallelize(empty_language_model(path).model, StageLayout(), Ranks(), dtype="fp32", weights=path)


def test_a_partial_load_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    path = saved(tmp_path / "model")
    weights = load_file(str(path / "model.safetensors"))
    name = "model.layers.1.mlp.up_proj.weight"
    for changed in (
        {key: value for key, value in weights.items() if key != name},
        {**weights, "more.weight": torch.zeros(2)},
        {**weights, name: torch.zeros(2, 2)},
    ):
        save_file(changed, str(path / "model.safetensors"), metadata={"format": "pt"})
        with pytest.raises(DataError, match=r"match config|has shape"):
            fill(path)


def test_missing_files_and_a_missing_directory_are_named(tmp_path):
    path = saved(tmp_path / "model", shard_size="100KB")
    next(path.glob("model-00002*")).unlink()
    with pytest.raises(DataError, match="model-00002"):
        fill(path)
    whole = saved(tmp_path / "whole")
    with pytest.raises(DataError, match="no directory"):
        parallelize(empty_language_model(whole).model, StageLayout(), Ranks(), dtype="fp32")


def test_scaled_rotary_frequencies_are_computed_again(tmp_path):
    path = saved(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    (path / "config.json").write_text(json.dumps(config))
    empty = empty_language_model(path).model
    parallelize(empty, StageLayout(), Ranks(), dtype="fp32", weights=path)
    whole = load_language_model(path).model
    frequencies = whole.model.rotary_emb.inv_freq
    assert torch.equal(empty.model.rotary_emb.inv_freq, frequencies)
    assert frequencies[1] == pytest.approx(500 ** (-2 / 16) / 4)
    assert (logits_of(empty) == logits_of(whole)).all()


def test_heads_that_cannot_be_split_are_refused():
    def split(ranks):
        try:
            parallelize(tiny.language_model().model, StageLayout(world_size=4, tensor=4), ranks, dtype="fp32")
        except StageError as error:
            return str(error)

    assert all("2 attention heads cannot be split over 4" in said for said in in_group(split, 4, tensor=4))


# What stages load: adapters, scalar models, copies that only read


def preference_directory(path, *, tied):
    architecture = replace(tiny.ARCHITECTURE, tied_embeddings=tied)
    language_model = new_language_model(architecture, tiny.train_tokenizer(tiny.TEXTS, vocab_size=400), seed=2)
    scalar = ScalarModel(language_model)
    with torch.no_grad():
        scalar.head.weight.normal_(generator=torch.Generator().manual_seed(3))
    PreferenceModel(scalar, language_model, {"pooling": "last"}).save(path)
    return path


def published(ranks, layout, language, preference, target):
    """The files that a policy with an adapter and a preference model are published as, read in parts or whole."""
    for empty in (True, False):
        policy = open_language_model(language, empty=empty)
        assert empty == any(item.is_meta for item in policy.model.parameters())
        add_adapter(policy.model, ADAPTER, seed=5)
        drawn = [bool(item.any()) for name, item in policy.model.named_parameters() if "lora_A" in name]
        assert all(drawn or [False]), "drawn, though what they stand beside is empty"
        reward = load_preference_model(preference, empty=empty)
        assert empty == all(item.is_meta for item in reward.scalar.body.parameters())
        frozen = load_preference_model(preference, empty=empty)
        parallel = [
            parallelize(policy.model, layout, ranks, dtype="fp32", weights=policy.source),
            parallelize(reward.scalar, layout, ranks, dtype="fp32", weights=reward.language_model.source),
        ]
        parallelize(frozen.scalar, layout, ranks, dtype="fp32", trained=False, weights=frozen.language_model.source)
        with torch.no_grad():
            frozen.scalar.eval()(torch.arange(12)[None])
        weights = [item.full_state_dict() for item in parallel]
        if ranks.is_first:
            where = target / str(empty)
            policy.save(where / "policy", merged_weights(weights[0], ADAPTER))
            reward.save(where / "reward", weights[1])
    return True


@pytest.mark.parametrize("tied", [True, False])
def test_what_is_published_does_not_hang_on_how_it_was_read(tied, tmp_path):
    language, preference = saved(tmp_path / "language", tied=tied), preference_directory(tmp_path / "reward", tied=tied)
    layout = StageLayout(world_size=2, zero=3)
    in_group(published, 2, layout, language, preference, tmp_path)
    for one in sorted((tmp_path / "True").rglob("*.*")):
        assert one.read_bytes() == (tmp_path / "False" / one.relative_to(tmp_path / "True")).read_bytes(), one.name
    assert len([*(tmp_path / "True").rglob("*.safetensors")]) == 3


def test_a_class_that_joins_its_weights_is_loaded_whole(tmp_path):
    """Names in the files are not the parameters': here one too many, which a whole load then judges."""
    from safetensors.torch import load_file, save_file

    path = saved(tmp_path / "model")
    weights = load_file(str(path / "model.safetensors"))
    save_file({**weights, "more.weight": torch.zeros(2)}, str(path / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(DataError, match="more"):
        open_language_model(path, empty=True)


class Counted:
    """Open safetensors files that count the bytes of what is read from them."""

    def __init__(self, monkeypatch):
        self.bytes = 0
        opened = sharded_load._open
        monkeypatch.setattr(
            sharded_load,
            "_open",
            lambda directory, stack: {name: _File(self, file) for name, file in opened(directory, stack).items()},
        )


class _File:
    def __init__(self, counted, file):
        self._counted, self._file = counted, file

    def get_slice(self, name):
        return _Slice(self._counted, self._file.get_slice(name))


class _Slice:
    def __init__(self, counted, stored):
        self._counted, self._stored = counted, stored

    def get_shape(self):
        return self._stored.get_shape()

    def __getitem__(self, part):
        value = self._stored[part]
        self._counted.bytes += value.nbytes
        return value


def bytes_of_a_rank(ranks, path, layouts):
    """Bytes read and bytes held by this rank under each layout, and those of the whole model."""
    found = []
    for layout in layouts:
        with pytest.MonkeyPatch.context() as monkeypatch:
            counted = Counted(monkeypatch)
            model = open_language_model(path, empty=True)
            whole = sum(item.nbytes for item in model.model.parameters())
            parallelize(model.model, layout, ranks, dtype="fp32", weights=path)
            held = sum(own_part(item).nbytes for item in model.model.parameters())
            found.append((counted.bytes, held, whole))
    return found


@pytest.mark.parametrize(("degrees", "stages"), [({}, (2, 3)), ({"tensor": 2}, (3,)), ({"context": 2}, (3,))], ids=str)
def test_a_rank_reads_and_holds_its_share_alone(degrees, stages, tmp_path):
    """A small model cut as a large one is; the bytes are counted, on every rank."""
    path = saved(tmp_path / "model", tied=False)
    chosen = [StageLayout(world_size=4, zero=zero, **degrees) for zero in stages]
    for found in in_group(bytes_of_a_rank, 4, path, chosen, **degrees):
        for read, held, whole in found:
            assert read == held, "nothing is read that is not kept"
            assert held <= 1.05 * whole / 4


LLAMA_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "vocab_size": 128256}


def bytes_of_70b(ranks, path, world, zero, adapter):
    """Parameters of one of many ranks, of which no other is there: torch's fake process group."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=3, world_size=world, store=FakeStore())
    model = empty_language_model(path).model
    if adapter:
        add_adapter(model, ADAPTER, seed=1)
    whole = sum(item.nbytes for item in model.parameters())
    layout = StageLayout(world_size=world, zero=zero)
    fake = Ranks(rank=3, world_size=world, data_rank=3, data_size=world)
    shard(model, layout, data_mesh(layout, fake)[0], fake, dtype=torch.bfloat16)
    assert all(own_part(item).is_meta for name, item in model.named_parameters() if "lora" not in name)
    return whole, sum(own_part(item).nbytes for item in model.parameters())


@pytest.mark.parametrize("adapter", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_of_70b_a_rank_has_an_eighth(adapter, tmp_path):
    from transformers import LlamaConfig

    path = saved(tmp_path / "model")
    LlamaConfig(**LLAMA_70B, num_attention_heads=64, num_key_value_heads=8, tie_word_embeddings=False).save_pretrained(
        str(path)
    )
    ((whole, held),) = in_group(bytes_of_70b, 1, path, 8, 3, adapter)
    assert whole >= 4 * 70_553_706_496
    assert held <= 1.001 * whole / 8
