"""The worker's calls of vLLM, in an order that its memory allows: against a module that is awake, asleep or between.

The real one is tried in tests/engines; this holds what only an accelerator would show: sleep, and what it costs.
"""

import importlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import save_file

from charter.inference.vllm_worker import EXTENSION, VllmEngine, digest

pytestmark = pytest.mark.torch
WEIGHTS, CACHE = "weights", "kv_cache"
SETTINGS = {"end": 2, "max_tokens": 3, "min_tokens": 1, "temperature": 0.7, "top_p": 0.9}


class Llm:
    """An engine with memory for weights and for keys, each of which may be away; it answers with its newest weight."""

    def __init__(self, *, worker_extension_cls, enable_sleep_mode=False, **settings):
        module, _, name = worker_extension_cls.rpartition(".")
        self.worker = getattr(importlib.import_module(module), name)()
        self.worker.model_runner = self
        self.can_sleep, self.settings = enable_sleep_mode, settings
        self.there, self.on_host, self.slept = {WEIGHTS, CACHE}, None, False
        self.loaded, self.keys_of = {"model.norm.weight": torch.zeros(2)}, {}

    def sleep(self, *, level):
        assert self.can_sleep, "memory can be given back only where it was taken so"
        self.on_host = self.loaded if level == 1 else None
        self.loaded, self.there, self.slept = {}, set(), True

    def wake_up(self, tags=None):
        self.there |= set(tags or (WEIGHTS, CACHE))

    def collective_rpc(self, method, args):
        return [getattr(self.worker, method)(*args)]

    def reload_weights(self, *, weights_iterator):
        assert WEIGHTS in self.there, "weights are written to memory that is there"
        assert not (self.slept and CACHE in self.there), "keys come back when weights no longer pass through"
        self.loaded = dict(weights_iterator)

    def get_model(self):
        return types.SimpleNamespace(named_parameters=self.loaded.items)

    def generate(self, prompts, params, *, use_tqdm):
        assert self.there == {WEIGHTS, CACHE}, "nothing is asleep"
        newest = int(self.loaded["model.norm.weight"][0])
        self.params, outputs = params, []
        for item in prompts:
            ids = tuple(item["prompt_token_ids"])
            drew = self.keys_of.setdefault(ids, newest) if self.settings["enable_prefix_caching"] else newest
            logprobs = [{drew: types.SimpleNamespace(logprob=-0.5)}]
            outputs.append(types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=[drew], logprobs=logprobs)]))
        return outputs


@pytest.fixture
def started(monkeypatch, tmp_path):
    """An engine on the made-up module, and a file of weights for each version."""
    module = types.SimpleNamespace(LLM=Llm, SamplingParams=types.SimpleNamespace, __version__="0")
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

    def start(**options):
        engine = VllmEngine()
        engine.start(model="m", dtype="bfloat16", options=options)
        return engine

    def weights(version):
        file = tmp_path / f"{version}.safetensors"
        save_file({"model.norm.weight": torch.full((2,), float(version), dtype=torch.bfloat16)}, str(file))
        return [str(file)]

    return start, weights


def sampled(engine, version, prompts=((5, 6), (7,))):
    seeds = [11 + place for place in range(len(prompts))]
    answer = engine.sample(version=version, prompts=[list(item) for item in prompts], seeds=seeds, **SETTINGS)
    return [row[0] for row in answer["tokens"]], answer["version"]


@pytest.mark.parametrize("sleeps", [False, True])
def test_every_rollout_is_drawn_by_the_weights_that_were_sent(started, sleeps):
    """Asleep in between or not; the same prompts come again, and keys of older weights would answer them."""
    start, weights = started
    engine = start(enable_sleep_mode=True) if sleeps else start()
    for version in (3, 4, 5):
        loaded = engine.load(version=version, files=weights(version))
        expected = digest(torch.full((2,), float(version), dtype=torch.bfloat16))
        assert loaded == {"version": version, "digests": {"model.norm.weight": expected}}
        assert sampled(engine, version) == ([version] * 2, version)
        if sleeps:
            engine.sleep()
            assert engine._llm.on_host is None, "weights come anew: a copy on the host would be in the trainer's way"
            with pytest.raises(ValueError, match="None is loaded"):
                sampled(engine, version)


def test_weights_that_came_in_part_are_no_version(started):
    start, weights = started
    engine = start()
    engine.load(version=3, files=weights(3))
    with pytest.raises(FileNotFoundError):
        engine.load(version=4, files=["/nowhere.safetensors"])
    for version in (3, 4):
        with pytest.raises(ValueError, match="None is loaded"):
            sampled(engine, version)


def test_what_is_sampled_is_what_the_trainer_counts(started):
    """Log-probabilities of the distribution that was drawn from, each row by its own seed, no settings of a model."""
    start, weights = started
    engine = start(max_model_len=64)
    engine.load(version=3, files=weights(3))
    sampled(engine, 3)
    settings, params = engine._llm.settings, engine._llm.params
    assert (settings["logprobs_mode"], settings["generation_config"]) == ("processed_logprobs", "vllm")
    assert (settings["load_format"], settings["max_model_len"]) == ("dummy", 64)
    assert [item.seed for item in params] == [11, 12]
    wanted = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 3, "min_tokens": 1, "logprobs": 0}
    assert wanted.items() <= vars(params[0]).items()
    assert (params[0].stop_token_ids, params[0].ignore_eos) == ([2], True)


def test_the_receiver_is_found_by_its_name():
    module, _, name = EXTENSION.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name).charter_load)
