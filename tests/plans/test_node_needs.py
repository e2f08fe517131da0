"""What a stage needs around its accelerators, in the plan and in its explanation."""

import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from charter.catalog import accelerators
from charter.cli.main import app
from charter.physics.node import TEXT_SECONDS_PER_TOKEN, TOKENISED_SECONDS_PER_TOKEN, VERDICT_BYTES, log_bytes
from charter.physics.shapes import count_parameters
from charter.plan.knowledge import TRAINING, TRAINING_MEMORY, memory_group, shipped
from charter.plan.node_needs import Wires, storage_terms
from charter.plan.option import DeviceGroup, RoleGroup
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.rl_work import characters
from charter.report.plan_cells import gib, peak_of_limit
from charter.report.plan_table import explain_stage
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Resources, Storage
from charter.spec.stage import JudgeStage, SftStage
from charter.spec.stage_base import StageResources
from charter.units import GIB
from charter.validation.quantities.memory import OomVerdict

SFT = SftStage(init="base", data=("chat",), epochs=1, global_batch=128, seq_len=1024)
PPO = PpoStage(policy="base", reward="base", prompts=("prompts",), episodes=8192, rollout_batch=512)


def text_of(stage, plan):
    console = Console(width=200, file=io.StringIO())
    console.print(explain_stage(stage, plan))
    return console.file.getvalue()


@pytest.mark.parametrize("local", [False, True], ids=["rented", "local processors"])
def test_every_kind_of_stage_says_what_it_needs(lab, local):
    resources = Resources(infra="local", accelerators=("cpu",)) if local else lab.H100
    made = lab.planned(lab.project(resources, architecture=lab.TINY if local else lab.LLAMA_8B))
    for stage in made.stages:
        needs, found = stage.node, stage.to_json()["node"]
        assert needs.memory.total > 0
        assert found["system_memory_bytes"] == round(needs.memory.total)
        assert set(found["storage"]) == {"data_bytes", "checkpoint_bytes", "weights_bytes", "log_bytes"}
        assert sum(needs.storage.by_part().values()) == pytest.approx(stage.storage_bytes)
        assert sum(found["storage"].values()) == pytest.approx(stage.storage_bytes, abs=2)
        assert all(term.value > 0 and term.formula and term.source for term in needs.storage.terms), stage.name
        assert (needs.traffic == ()) == (local or stage.kind == "prepare")
        assert all(math.isfinite(item.bytes_per_second) for item in needs.traffic)
        text = text_of(stage, made)
        assert "p10-p90" in text
        assert "Width of the memory: " in text
        assert "Around the accelerators" in text


def test_local_memory_is_the_peak_itself(lab):
    stage = lab.one(SFT, Resources(infra="local", accelerators=("cpu",)), architecture=lab.TINY).stages[0]
    assert stage.node.memory.total == pytest.approx(stage.option.peak.total_bytes)
    assert stage.node.to_json()["network_bytes_per_step"] == {}
    assert "judgement" in stage.time_source


def test_a_copy_of_a_checkpoint_is_needed_where_it_has_room(lab):
    def memory(gib, engine="native"):
        place = Resources(infra="on_prem", accelerators=("H100:8",), price=2.0, memory=gib * GIB)
        [stage] = lab.one(replace(SFT, engine=engine), place).stages
        return {term.name: term.value for term in stage.node.memory.terms}, stage.execution.memory_bytes_per_node

    roomy, asked = memory(1024)
    assert roomy["staging"] == pytest.approx(2 * 14 * count_parameters(lab.LLAMA_8B).total)
    assert asked >= sum(roomy.values())
    tight, asked = memory(128)
    assert "staging" not in tight
    assert asked <= 128 * GIB
    assert "staging" in memory(128, "megatron")[0]


def fixed(lab, *, engine="native", **layout):
    """Supervised fine-tuning of 8 B parameters on two nodes of eight H100 under a prescribed layout."""
    resources = StageResources(num_nodes=2, **{"micro_batch": 1, "tensor": 1, "zero": 3, "replicas": 1, **layout})
    return lab.one(replace(SFT, resources=resources, engine=engine)).stages[0]


def test_sharded_training_sends_what_the_zero_paper_says(lab):
    stage = fixed(lab)
    size = count_parameters(lab.LLAMA_8B).total
    micro = stage.option.layout.accumulation
    sent = stage.node.bytes_per_step["data parallel"]
    assert sent == pytest.approx(micro * 15 / 16 * (2 * 2 + 4) * size)
    traffic = next(item for item in stage.node.traffic if item.kind == "data parallel")
    assert traffic.bytes_per_second == pytest.approx(sent / traffic.seconds)
    assert traffic.leaving == 1  # a ring through eight accelerators leaves their node once
    assert stage.node.node_bytes_per_second >= traffic.bytes_per_second


def test_hybrid_sharding_gathers_inside_the_node_and_reduces_between_copies(lab):
    stage = fixed(lab, replicas=2)
    size, micro = count_parameters(lab.LLAMA_8B).total, stage.option.layout.accumulation
    sent = stage.node.bytes_per_step
    assert sent["data parallel"] == pytest.approx(micro * 7 / 8 * (2 * 2 + 4) * size)
    assert sent["between copies"] == pytest.approx(2 * 1 / 2 * 4 * size / 8)
    leaving = {item.kind: item.leaving for item in stage.node.traffic}
    assert leaving["data parallel"] == 0
    assert leaving["between copies"] == 8


def test_gradients_hide_behind_the_last_backward_pass_unless_sharded(lab):
    """ZeRO-1 sends less, but in a shorter time: two thirds of the last of its micro-batches."""
    sharded, whole = fixed(lab, zero=3, tensor=4), fixed(lab, engine="megatron", zero=1, tensor=4, pipeline=1)
    of = [{item.kind: item for item in stage.node.traffic} for stage in (sharded, whole)]
    assert of[1]["data parallel"].num_bytes < of[0]["data parallel"].num_bytes
    assert of[0]["data parallel"].seconds == of[0]["tensor parallel"].seconds
    last = of[1]["tensor parallel"].seconds / whole.option.layout.accumulation
    assert of[1]["data parallel"].seconds == pytest.approx(2 / 3 * last)


def test_tensor_parallel_traffic_stays_in_the_node(lab):
    stage = fixed(lab, tensor=8)
    kinds = {item.kind: item for item in stage.node.traffic}
    assert kinds["tensor parallel"].leaving == 0
    assert kinds["data parallel"].leaving == 8  # eight groups, each with one accelerator here


@given(st.integers(1, 16), st.integers(1, 16), st.sampled_from([1, 8, 72]))
def test_no_more_leaves_a_node_than_its_accelerators_send(size, stride, domain):
    wires = Wires(per_node=8, domain=domain)
    assert 0 <= wires.ring(size, stride) <= 8
    assert 0 <= wires.exchange(size, stride) <= 8
    assert wires.near(size, stride) <= size


def test_system_memory_of_training_and_answering(lab):
    """Eight processes and loaders, the system, and twice the node's half of a checkpoint of 14 bytes each."""
    size = count_parameters(lab.LLAMA_8B).total
    stage = fixed(lab)
    assert stage.node.memory.total == pytest.approx(8 * 4 * GIB + 8 * 2 * GIB + 8 * GIB + 2 * 14 * size / 2)
    adapter = lab.one(replace(SFT, adapter=Adapter(rank=16))).stages[0]
    loading = next(term for term in adapter.node.memory.terms if term.name == "loading")
    assert loading.value == 2 * size


def test_loader_cores_are_tokens_times_seconds(lab):
    stage = fixed(lab)
    rate = 40_000 * 300 / stage.option.overhead.useful_seconds / 2
    assert stage.node.tokens_per_second == pytest.approx(rate, rel=0.02)
    assert stage.node.loader_cores == stage.node.tokens_per_second * TEXT_SECONDS_PER_TOKEN
    assert stage.node.loader_cores_tokenised == stage.node.tokens_per_second * TOKENISED_SECONDS_PER_TOKEN


def test_checkpoints_follow_retention(lab):
    size = count_parameters(lab.LLAMA_8B).total
    for keep in (1, 3):
        stage = lab.one(SFT, storage=Storage(keep_last=keep)).stages[0]
        stored = stage.to_json()["node"]["storage"]
        assert stored["checkpoint_bytes"] == (keep + 1) * 14 * size
        assert stored["weights_bytes"] == 2 * size
        assert stored["data_bytes"] == 0


def test_data_of_each_step_of_constitutional_ai(lab):
    made = lab.planned(lab.project())
    critique, label = made.stage("critique"), made.stage("label")
    names = {term.name for term in critique.node.storage.terms}
    assert {"text of answer", "text of critique", "text of revise", "prompts and given texts"} <= names
    verdicts = next(term for term in label.node.storage.terms if term.name == "verdicts")
    assert verdicts.value == VERDICT_BYTES * 10_000
    generated = sum(term.value for term in critique.node.storage.terms if term.name.startswith("text of"))
    assert generated == pytest.approx(4 * critique.counters.generated_tokens)
    steps = critique.node.to_json()["storage"]["log_bytes"]
    assert steps == log_bytes((steps - log_bytes(0)) / 500)


def test_a_rollout_counts_what_policy_and_value_send(lab):
    stage = lab.one(replace(PPO, resources=StageResources(num_nodes=2, zero=3, tensor=1))).stages[0]
    phases = {item.phase for item in stage.node.traffic}
    assert {"generate", "train policy", "train value", "storage"} <= phases
    assert "weights for generation" in stage.node.bytes_per_step
    assert stage.node.bytes_per_second <= sum(item.bytes_per_second for item in stage.node.traffic)


def test_answers_in_flight_are_stored_for_a_replay(lab):
    """By the native engine alone, whether or not checkpoints are removed."""
    flying = replace(PPO, asynchrony="in_flight", max_age=2, mean_new_tokens=100)
    stored = {
        item.engine: lab.one(item, storage=Storage(keep_last=1)).stages[0].node.storage
        for item in (flying, replace(flying, engine="openrlhf"))
    }
    (term,) = [term for term in stored["native"].terms if term.name == "rollouts on record"]
    prompt, token = 60, 5.134 + 2
    each = 73 + prompt * token + 100 * (token + characters(16) + 2 + 21.5)
    assert term.value == pytest.approx(8192 * each, rel=1e-3)
    assert stored["native"].part("data") == term.value
    assert stored["openrlhf"].part("data") == 0


def test_text_of_a_rollout_is_prompts_and_answers_once(lab):
    stage = lab.one(PPO).stages[0]
    assert stage.node.tokens_per_second * stage.option.overhead.useful_seconds * stage.option.num_nodes == (
        pytest.approx(8192 * (PPO.max_prompt_tokens + PPO.max_new_tokens))
    )


def test_the_range_of_a_peak_is_the_shipped_half_width(lab):
    known = shipped()
    judge = JudgeStage(init="base", pairs=("pairs",))
    adapted = replace(SFT, adapter=Adapter(rank=16))
    for stage, group in ((SFT, "training memory"), (adapted, "adapter memory"), (judge, "training memory")):
        assert memory_group(stage) == (TRAINING_MEMORY, group)
        found = lab.one(stage).stages[0]
        spread, width = found.peak_range.interval, known.half_width(TRAINING_MEMORY, group)
        assert spread.p50 == found.option.peak.total_bytes
        assert (spread.p90 / spread.p50, spread.p50 / spread.p10) == pytest.approx((math.exp(width),) * 2)
        assert all(source in found.peak_range.source for source in known.measured[TRAINING_MEMORY])
        assert all(source in found.time_source for source in known.measured[TRAINING])
        assert json.loads(json.dumps(found.to_json()))["peak_bytes_range"]["p90"] == round(spread.p90)


def test_a_plan_and_mem_show_one_figure_to_plan_with(lab):
    """Both show the sum of terms times one factor; stages that answer or draw, and processors, show the sum."""
    for stage, words in ((SFT, ()), (replace(SFT, adapter=Adapter(rank=16)), ("--rank", "16"))):
        found = lab.one(stage).stages[0]
        mem = CliRunner().invoke(app, ["plan", "mem", "Llama-3.1-8B", "--on", "H100:8", *words, "--json"])
        report = json.loads(mem.stdout)
        assert found.peak_range.margin == pytest.approx(report["enough_bytes"] / report["peak_bytes"])
        line = found.to_json()
        assert line["peak_bytes"] < line["enough_bytes"] < line["peak_bytes_range"]["p90"]
        enough, limit = peak_of_limit(found)
        assert enough == gib(line["enough_bytes"])
        assert f"planned with {enough} GiB, which 75 % of such jobs" in " ".join(text_of(found, lab.one(stage)).split())
        assert float(limit) < found.option.fullest_device.memory_bytes / GIB, (
            "what may be filled stays below the device"
        )
    processors = Resources(infra="local", accelerators=("cpu",))
    local = lab.one(SFT, processors, architecture=lab.TINY).stages[0].peak_range
    drawn = lab.one(PPO).stages[0].peak_range
    for peak in (local, drawn):
        assert peak.enough_bytes == peak.interval.p50


def test_a_plan_says_how_sure_it_is_that_a_stage_fits(lab):
    """One function gives the probability of a row and of a stage, against the device and not its usable part."""
    for resources, architecture in (
        (lab.H100, lab.LLAMA_8B),
        (Resources(infra="local", accelerators=("cpu",)), lab.TINY),
    ):
        for stage in lab.planned(lab.project(resources, architecture=architecture)).stages:
            found, device = stage.to_json()["fits_probability"], stage.option.place.accelerator
            if stage.option.peak.total_bytes == 0:
                assert found is None
                continue
            need, limit = stage.peak_range.interval, device.memory_bytes
            verdict = OomVerdict(verdict=False, p10=False, p90=False, stack="", need=need, capacity_bytes=limit)
            assert found == pytest.approx(verdict.fits_probability, abs=1e-4), stage.name
            assert (found >= 0.9) == (need.p90 <= limit), stage.name


@pytest.mark.parametrize("fuller", ["H100-SXM-80GB", "B200-SXM-180GB"])
def test_mixed_devices_the_fullest_is_the_one_judged(lab, fuller):
    """Of groups on two kinds of devices the memory of the group nearest to its limit counts."""
    option = lab.one(SFT).stages[0].option
    names = ("H100-SXM-80GB", "B200-SXM-180GB")
    groups = tuple(
        RoleGroup(
            name=name,
            roles=(),
            hardware=name,
            num_accelerators=8,
            layout=option.layout,
            layout_label="",
            peak=option.peak,
            capacity_bytes=option.peak.total_bytes * (1.1 if name == fuller else 2.0),
            busy_share=1.0,
        )
        for name in names
    )
    places = {name: replace(option.place, accelerator=accelerators.get(name)) for name in names}
    beside = DeviceGroup(
        name="generators",
        place=places[names[1]],
        num_nodes=1,
        layout=option.layout,
        layout_label="",
        price=option.price,
        peak=option.peak,
        capacity_bytes=1.0,
    )
    mixed = replace(option, place=places[names[0]], groups=groups, beside=(beside,))
    assert mixed.fullest_device.name == fuller


@given(st.integers(1, 5), st.integers(0, 10**6), st.floats(0, 1e12))
def test_parts_of_storage_sum_to_it_and_grow_with_retention(keep, steps, data):
    small = Architecture(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=688, vocab_size=2048)
    role = Role(name="model", architecture=small, model="base", trained=True)
    phase = RolePhase(name="train", work="train", role="model", steps=steps, batch=8, prompt_tokens=100)
    trained = Workload(roles=(role,), phases=(phase,), counters=Counters())
    written = Workload(roles=(), phases=(), counters=Counters(), data_bytes=data)
    for work in (trained, written):
        stored, more = (storage_terms(work, keep_last=number) for number in (keep, keep + 1))
        assert sum(stored.by_part().values()) == pytest.approx(stored.total)
        full = 14 * count_parameters(small).total if work is trained else 0
        assert more.total - stored.total == pytest.approx(full)
    assert storage_terms(written, keep).part("data") == pytest.approx(data)
