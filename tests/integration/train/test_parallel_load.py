"""Models filled after sharding equal models loaded whole, bit for bit; what does not fit is refused."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny
from group import in_group

from charter.errors import DataError, StageError
from charter.models.decoder import tied_weights
from charter.models.engine_layout import StageLayout
from charter.models.language_model import (
    empty_language_model,
    load_language_model,
    new_language_model,
)
from charter.models.parallel import parallelize
from charter.models.ranks import Ranks

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
