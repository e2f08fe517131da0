"""How often the host waits for the device: on torch's meta device, which has no values to wait for.

Whatever reads a value of a meta tensor fails, so every wait is caught here; a copy out is answered with ones and
counted. Copies from the host count too, unless they are asked for without a wait.
"""

from dataclasses import fields
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import tiny
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from charter.inference import generate as sampling
from charter.inference.generate import LOOK_TOKENS, SamplingSettings, generate
from charter.inference.score import score_rows
from charter.models import context_split, layer_passes
from charter.models.chat import Encoded
from charter.models.language_model import LanguageModel
from charter.models.parallel import Parallel
from charter.models.preference import PreferenceModel, ScalarModel
from charter.models.ranks import Ranks
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage
from charter.train import dpo
from charter.train.encoded_pairs import EncodedPair, encode_dpo_pair
from charter.train.optimizers import make_optimizer
from charter.train.packing import model_inputs, own_parts, packed_batch
from charter.train.ppo_rollout import Rollout
from charter.train.ppo_sequences import Sequences
from charter.train.ppo_step import MinibatchPosition, Update
from charter.train.preference_model import pair_loss
from charter.train.pretrain import language_loss
from charter.train.supervised import SupervisedTask
from charter.train.token_data import collate

pytestmark = pytest.mark.torch
META = torch.device("meta")
SFT = SftStage(init="a", data=("d",), dtype="fp32")
READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::is_nonzero")


class Waits(TorchDispatchMode):
    """Operations, and those among them for which the host waits."""

    def __init__(self):
        super().__init__()
        self.waits, self.operations = [], 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, operation._schema.name
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        on_meta = any(item.is_meta for item in tensors)
        self.operations += on_meta
        if on_meta and name in READS:
            self.waits.append(name)
            return 0.0 if tensors[0].is_floating_point() else 0
        if name == "aten::_to_copy" and kwargs.get("device") is not None:
            source, target = tensors[0], torch.device(kwargs["device"])
            if source.is_meta and target.type == "cpu":
                self.waits.append("copy to the host")
                return torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
            if target == META and not source.is_meta and not kwargs.get("non_blocking"):
                self.waits.append("copy from the host")
        return operation(*args, **kwargs)


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch):
    """Autocast has no rules for meta."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind=None: False)


def model_on_meta():
    language_model = tiny.language_model()
    language_model.model.to(META)
    return language_model


def rows_of(count):
    return [Encoded(tuple(range(5, 5 + length)), (True,) * length) for length in range(6, 6 + count)]


class Setup:
    """What a step asks of its stage."""

    device = META

    class ranks:
        data_size = summed_size = 1
        share = staticmethod(list)
        sum = total = staticmethod(lambda values: values)
        gather = staticmethod(lambda value: [value])

    class stage:
        alive = staticmethod(lambda: None)

    class layout:
        micro_batches = staticmethod(lambda rows: [(start, start + 2) for start in range(0, rows, 2)])

    class meter:
        added = ()
        add = staticmethod(lambda counters: None)

        @staticmethod
        def phase(name):
            import contextlib

            return contextlib.nullcontext()

    def seed(self, *parts):
        return 1

    def own_parts(self):
        return ()


@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("packing", [False, True])
def test_a_step_of_supervised_training_waits_once(packing, context, monkeypatch):
    model, data = model_on_meta(), rows_of(8)
    monkeypatch.setattr(context_split.dist, "all_to_all_single", lambda given, sent, group: given.copy_(sent))
    parts = own_parts(Ranks(context_size=context), model.model.config, "sdpa", 64)
    spec = SftStage(init="a", data=("d",), dtype="fp32", global_batch=8, packing=packing)
    parallel, losses = Parallel(model.model), 0

    def loss_of(rows, step):
        nonlocal losses
        losses += 1
        chosen = [data[row] for row in rows]
        if not packing:
            ids_BT, counted_BT = collate(chosen, padding=0)
            return language_loss(parallel.call, ids_BT, counted_BT, dtype="fp32", device=META, parts=parts)
        batch = packed_batch([chosen], padding=0, multiple=context)
        more = model_inputs(batch, attention="sdpa", device=META)
        given = {"dtype": "fp32", "device": META, "more": more, "parts": parts}
        return language_loss(parallel.call, batch.ids_BT, batch.counted_BT, **given)

    optimizer = make_optimizer([(parallel.trained_parameters(), 1e-3)], spec)
    task = SupervisedTask(Setup(), parallel, optimizer, spec, len(data), 4, loss_of)
    with Waits() as seen:
        report = task.run_part(type("At", (), {"step": 0})())
    assert losses == 4
    assert seen.waits == ["copy to the host"]
    assert report.counters["tokens"] > 0


def preference_model():
    language_model = tiny.language_model()
    return PreferenceModel(ScalarModel(language_model), language_model, {"pooling": "last"})


def pairs_of(count):
    rows = [np.arange(5, 5 + length, dtype=np.int32) for length in range(6, 6 + 2 * count)]
    return [EncodedPair((rows[2 * at], rows[2 * at + 1]), (3, 4), 1.0, 0.0) for at in range(count)]


def test_a_step_of_a_preference_model_waits_once():
    model, data = preference_model(), pairs_of(8)
    model.scalar.to(META)
    spec, parallel = PreferenceModelStage(init="a", data=("d",), dtype="fp32", global_batch=8), Parallel(model.scalar)

    def loss_of(rows, step):
        return pair_loss(model, [data[row] for row in rows], spec, call=parallel.call)

    optimizer = make_optimizer([(parallel.trained_parameters(), 1e-3)], spec)
    task = SupervisedTask(Setup(), parallel, optimizer, spec, len(data), 4, loss_of)
    with Waits() as seen:
        report = task.run_part(type("At", (), {"step": 0})())
    assert seen.waits == ["copy to the host"]
    assert report.counters["pairs"] > 0


@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_a_step_of_dpo_waits_once(loss, context, monkeypatch):
    """Answers are found in their rows on the host, however many micro-batches and models read them."""
    policy, reference = model_on_meta(), model_on_meta()
    monkeypatch.setattr(context_split.dist, "all_to_all_single", lambda given, sent, group: given.copy_(sent))
    monkeypatch.setattr(context_split.dist, "all_reduce", lambda values, group: None)
    parts = own_parts(Ranks(context_size=context), policy.model.config, "sdpa", 64)
    spec = DpoStage(init="a", data=("d",), dtype="fp32", global_batch=8, seq_len=64, loss=loss)
    data = [encode_dpo_pair(policy.tokenizer, pair, max_tokens=64) for pair in tiny.pairs()]
    setup, parallel = Setup(), Parallel(policy.model)
    models = (parallel.module, reference.model)
    point = dpo.ReferencePoint(setup, *models, data, spec, 0, parts) if loss == "kto" else None

    def loss_of(rows, step):
        given = {"padding": 0, "device": META, "parts": parts}
        nats = None if point is None else point.nats
        return dpo.pairs_loss(*models, [data[row] for row in rows], spec, reference_point=nats, **given)

    before = None if point is None else point.measure
    optimizer = make_optimizer([(parallel.trained_parameters(), 1e-3)], spec)
    task = SupervisedTask(setup, parallel, optimizer, spec, len(data), 4, loss_of, before_step=before)
    with Waits() as seen:
        report = task.run_part(type("At", (), {"step": 0})())
    assert seen.waits == ["copy to the host"]
    assert report.counters["pairs"] > 0


@pytest.mark.parametrize("parts", [1, 4])
def test_a_minibatch_of_ppo_waits_twice(parts):
    """For what was measured, and for the norms: however many micro-batches it has."""
    policy, value, rows = model_on_meta(), preference_model(), 8
    value.scalar.to(META)
    answer_BR = torch.ones(rows, 4, dtype=torch.bool)
    known = Sequences(torch.zeros(rows, 9).long(), torch.ones(rows, 9).long(), torch.full((rows,), 5), answer_BR)
    sequences = Sequences(*(getattr(known, item.name).to(META) for item in fields(Sequences)))
    sequences.__dict__["masks"] = known.masks
    of_answers, of_states = (torch.zeros(rows, width, device=META) for width in (4, 4))
    rollout = Rollout(
        sequences=sequences, log_probability_BR=of_answers, advantage_BR=of_answers, score_B=of_answers[:, 0],
        ended_B=of_answers[:, 0] > 0, reference_BR=of_answers, value_BR=of_states, return_BR=of_states,
    )  # fmt: skip
    spec = PpoStage(policy="p", reward="r", prompts=("q",), episodes=16, rollout_batch=8, minibatch=8, dtype="fp32")
    trained, critic = Parallel(policy.model), Parallel(value.scalar)
    optimizers = [make_optimizer([(item.trained_parameters(), 1e-3)], SFT) for item in (trained, critic)]
    update = Update(Setup(), spec, trained, optimizers[0], critic, optimizers[1])
    guard = type("Guard", (), {"allows": staticmethod(lambda *_: True)})
    micro_batches = torch.arange(rows).chunk(parts)
    with Waits() as seen:
        update.minibatch(rollout, micro_batches, MinibatchPosition(0, 1, 0), guard, kl_coefficient=0.1)
    assert seen.waits == ["copy to the host"] * 2


def test_a_score_without_a_look_has_the_same_bits(monkeypatch):
    model, (pair,) = preference_model(), pairs_of(1)
    torch.nn.init.normal_(model.scalar.head.weight, generator=torch.Generator().manual_seed(0))
    plain = score_rows(model, pair.ids, pair.answer_tokens)
    monkeypatch.setattr(layer_passes, "is_queued", lambda device: True)
    assert torch.equal(plain, score_rows(model, pair.ids, pair.answer_tokens))


def test_bodies_that_ask_more_of_a_cache_are_given_none(monkeypatch):
    """A convolution looks for its state in the cache of its layer, which the stand-in does not have."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = Lfm2Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=2, layer_types=["conv", "full_attention"],
    )  # fmt: skip
    torch.manual_seed(1)
    scalar = ScalarModel(SimpleNamespace(model=Lfm2ForCausalLM(config).eval()))
    torch.nn.init.normal_(scalar.head.weight)
    ids_BT = torch.arange(5, 29).view(2, 12)
    plain = scalar(ids_BT)
    monkeypatch.setattr(layer_passes, "is_queued", lambda device: True)
    assert torch.equal(plain, scalar(ids_BT))


@pytest.mark.parametrize(
    ("lengths", "tokens", "dtype"),
    [((9, 9), 32, torch.float32), ((9, 5), 64, torch.float32), ((9, 5), 64, torch.bfloat16)],
)
def test_the_host_waits_for_one_token_in_sixteen(lengths, tokens, dtype):
    model: LanguageModel = model_on_meta()
    model.model.to(dtype)  # in 16 bits by joint products
    prompts = [list(range(5, 5 + length)) for length in lengths]
    with Waits() as seen:
        generate(model, prompts, seeds=[1, 2], settings=SamplingSettings(max_new_tokens=tokens))
    beside = 3 if lengths[0] != lengths[1] else 1  # the answers' length; transformers' look at padding
    assert len(seen.waits) <= tokens // LOOK_TOKENS + beside


@pytest.mark.parametrize("prompts", [[[5, 6, 7, 8], [9, 10, 11, 12]], [[5, 6, 7, 8, 9, 10, 11], [12, 13]]])
def test_looking_less_often_draws_the_same_tokens(monkeypatch, prompts):
    """Rows that have ended go on for a while; their tokens are padding, and the columns after the last end are cut."""
    model, settings = tiny.language_model(), SamplingSettings(max_new_tokens=48)

    def answers():
        return generate(model, prompts * 3, seeds=list(range(6)), settings=settings)

    monkeypatch.setattr(LanguageModel, "end_id", int(answers().answer_BR[0, 5]))
    plain = answers()
    monkeypatch.setattr(sampling, "is_queued", lambda device: True)
    queued = answers()
    assert len(set(plain.answer_mask_BR.sum(1).tolist())) > 1, "some end early"
    assert torch.equal(plain.answer_mask_BR, queued.answer_mask_BR)
    assert torch.equal(plain.answer_BR[plain.answer_mask_BR], queued.answer_BR[plain.answer_mask_BR])


def test_columns_behind_the_last_end_are_cut(monkeypatch):
    """All rows have ended, and the host has not looked yet."""
    model, settings = tiny.language_model(), SamplingSettings(max_new_tokens=48, temperature=0.0)

    def answers():
        return generate(model, [[5, 6, 7, 8]] * 2, seeds=[1, 2], settings=settings)

    monkeypatch.setattr(LanguageModel, "end_id", int(answers().answer_BR[0, 5]))
    plain = answers()
    assert plain.answer_BR.shape[1] < LOOK_TOKENS
    monkeypatch.setattr(sampling, "is_queued", lambda device: True)
    assert torch.equal(plain.answer_BR, answers().answer_BR)


def test_a_loss_without_a_look_has_the_same_bits(monkeypatch):
    model = tiny.language_model()
    ids_BT, counted_BT = collate(rows_of(3), padding=0)

    def loss():
        return language_loss(model.model, ids_BT, counted_BT, dtype="fp32", device=torch.device("cpu")).loss_sum

    plain = loss()
    monkeypatch.setattr(layer_passes, "is_queued", lambda device: True)
    assert torch.equal(plain, loss())
