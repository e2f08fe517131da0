"""Plans of rollouts by vLLM beside the trainer: what runs is what is priced."""

from dataclasses import replace

import numpy as np
import planner_case
import pytest
from ppo_case import without_value, workload

from charter.catalog import accelerators
from charter.physics.columns import Layouts
from charter.plan import stage_time
from charter.plan.answer_memory import server_of
from charter.plan.knowledge import engine_knowledge, shipped
from charter.plan.plan import InfeasiblePlanError
from charter.plan.stage_memory import decoded_together, fit_of, one_device, training_peak
from charter.plan.stage_time import TimedStage, other_seconds
from charter.report.plan_notes import generator_lines
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage_base import StageResources
from charter.units import GIB

H100, KNOWN = accelerators.get("H100"), shipped()
STAGE = replace(planner_case.ALL_KINDS["ppo"], policy="base", reward="base", estimator="rloo", samples_per_prompt=4)
LAYOUTS = [
    Layout(data=8, zero=ZeroStage.PARAMETERS, micro_batch=2, accumulation=8, recompute=Recompute.FULL),
    Layout(data=4, tensor=2, zero=ZeroStage.PARAMETERS, micro_batch=2, accumulation=16),
    Layout(data=8, zero=ZeroStage.NONE, micro_batch=1, accumulation=16),
]


def served(model="Llama-3.1-8B"):
    work = without_value(workload(model))
    return replace(work, phases=tuple(replace(phase, served=phase.work == "generate") for phase in work.phases))


def planned(generator, engine="native", *, architecture=planner_case.LLAMA_8B):
    stage = replace(STAGE, generator=generator, engine=engine)
    return planner_case.one(stage, architecture=architecture).stages[0]


@pytest.mark.parametrize("engine", ["native", "trl"])
def test_columns_of_served_rollouts_are_the_scalar_estimates(engine):
    work, known = served(), engine_knowledge(engine, KNOWN)
    columns = fit_of(work, Layouts.of(LAYOUTS), one_device(H100, 3, 1e12), dtype="bf16", known=known)
    task = TimedStage(work=work, dtype="bf16", known=known, knowledge=KNOWN)
    seconds = other_seconds(task, LAYOUTS, [H100] * 3, columns, np.arange(3))
    for row, layout in enumerate(LAYOUTS):
        asked = {"accelerator": H100, "dtype": "bf16", "knowledge": KNOWN, "engine": engine}
        assert columns.peak[row] == pytest.approx(training_peak(work, layout, **asked).total_bytes, rel=1e-9)
        together = decoded_together(work, work.phases[0], layout, **asked)
        assert columns.together["generate"][row] == together
        (terms,) = stage_time.training_terms(task, [layout], one_device(H100, 1, 1e12), {"generate": [together]})
        others = sum(term.value for term in terms if not term.part.startswith("train"))
        assert seconds[row] == pytest.approx(others, rel=1e-9)


def test_columns_of_native_rollouts_are_the_scalar_estimates():
    """A model that is complete on a GPU is decoded by a graph, and one that ZeRO-2 spreads is not."""
    work, layouts = without_value(workload("Llama-3.2-1B")), [Layout(data=8), Layout(data=8, zero=ZeroStage.GRADIENTS)]
    known = engine_knowledge("native", KNOWN)
    columns = fit_of(work, Layouts.of(layouts), one_device(H100, 2, 1e12), dtype="bf16", known=known)
    task = TimedStage(work=work, dtype="bf16", known=known, knowledge=KNOWN)
    seconds = other_seconds(task, layouts, [H100] * 2, columns, np.arange(2))
    for row, layout in enumerate(layouts):
        together = {"generate": columns.together["generate"][[row]]}
        (terms,) = stage_time.training_terms(task, [layout], one_device(H100, 1, 1e12), together)
        others = sum(term.value for term in terms if not term.part.startswith("train"))
        assert seconds[row] == pytest.approx(others, rel=1e-9)
    assert seconds[1] > 1.5 * seconds[0]


def test_the_share_of_vllm_is_there_at_every_moment():
    asked = {"accelerator": H100, "dtype": "bf16", "knowledge": KNOWN}
    beside = training_peak(served(), LAYOUTS[0], **asked)
    (share,) = [term for term in beside.terms if term.name == "policy: vLLM beside the trainer"]
    assert share.value == pytest.approx(0.4 * H100.memory_bytes)
    assert "weights gathered for generation" not in {term.name for _, term in beside.parts}
    assert beside.moment.startswith("training")
    assert beside.total_bytes > 0.4 * H100.memory_bytes + 10 * GIB


def test_weights_that_exceed_the_share_fit_nowhere():
    server = server_of(served().phases[0], "native")
    term = server.memory(served("Llama-3.1-70B").roles[0], served().phases[0], H100)
    assert term.value == H100.memory_bytes
    assert "131.4 GiB of weights and one answer do not fit into it" in term.formula
    with pytest.raises(InfeasiblePlanError):
        planned("vllm", architecture=planner_case.LLAMA_70B)


def test_one_server_of_the_native_engine_has_the_complete_batch():
    native, trl = (server_of(served().phases[0], engine) for engine in ("native", "trl"))
    assert (native.replicas(8), trl.replicas(8)) == (1, 8)
    phase, role = served().phases[0], served().roles[0]
    assert native.together(role, phase, 8, H100) > trl.together(role, phase, 8, H100)
    assert trl.together(role, phase, 8, H100) == phase.batch / 8


@pytest.mark.parametrize("engine", ["native", "trl"])
def test_the_plan_of_a_stage_differs_where_vllm_generates(engine):
    alone, beside = planned("native", engine), planned("vllm", engine)

    def seconds(stage, part):
        return sum(term.value for term in stage.option.time_terms if term.part == part)

    # TRL's servers stand on each accelerator; one server beside the native engine has all the answers.
    assert (seconds(beside, "generate") < seconds(alone, "generate")) == (engine == "trl")
    names = {term.name for term in beside.option.time_terms}
    assert ("generate: weights to vLLM" in names) == (engine == "native")
    assert any(term.part == "kv_cache" for _, term in beside.option.peak.parts)


def test_a_server_takes_the_next_answer_when_one_ends():
    """Two turns of 64 places: answers of mean length, then until the longest ends; one turn ends with the longest."""

    def decode_steps(mean, together):
        work = served("Llama-3.2-1B")
        phases = tuple(replace(one, batch=128, mean_new_tokens=mean, new_tokens=1000.0) for one in work.phases[:1])
        task = TimedStage(
            work=replace(work, phases=phases), dtype="bf16", known=engine_knowledge("native", KNOWN), knowledge=KNOWN
        )
        (terms,) = stage_time.training_terms(
            task, [Layout(data=8)], one_device(H100, 1, 1e12), {"generate": [together]}
        )
        return next(term.formula for term in terms if term.name == "generate: decode, issue").split("waves x ")[1]

    assert decode_steps(300.0, 64).startswith("650 steps")
    assert decode_steps(0.0, 64).startswith("1,000 steps")
    assert decode_steps(300.0, 128).startswith("1,000 steps")


@pytest.mark.parametrize(("engine", "says"), [("native", True), ("trl", False)])
def test_a_plan_says_that_accelerators_wait_for_one_server(engine, says):
    for generator in ("vllm", "native"):
        stage = replace(STAGE, generator=generator, engine=engine)
        lines = list(generator_lines(planner_case.one(stage, architecture=planner_case.LLAMA_8B)))
        assert len(lines) == (says and generator == "vllm")
        assert all("on the first of 8 accelerators" in line for line in lines)


def test_engines_that_always_use_vllm_plan_the_same():
    assert planned("vllm", "verl").option.time_terms == planned("native", "verl").option.time_terms


@pytest.mark.parametrize(
    ("engine", "is_served", "times"), [("native", False, 8), ("native", True, 1), ("trl", False, 1)]
)
def test_only_the_native_generator_reads_a_prompt_once(engine, is_served, times):
    """Of eight answers to it, by the time that keys of prompts take."""

    work = served("Llama-3.2-1B")

    def seconds(share):
        phases = tuple(replace(one, served=is_served and one.served, read_share=share) for one in work.phases)
        known = engine_knowledge(engine, KNOWN)
        task = TimedStage(work=replace(work, phases=phases), dtype="bf16", known=known, knowledge=KNOWN)
        (terms,) = stage_time.training_terms(task, [Layout(data=8)], one_device(H100, 1, 1e12), {"generate": [64]})
        return next(term.value for term in terms if term.name == "generate: prefill, keys and values")

    assert seconds(1.0) / seconds(1 / 8) == pytest.approx(times)


def test_answers_that_do_not_fit_together_are_drawn_in_parts():
    """The number that memory and time are planned with is what the stage is started with; the file comes before it."""

    def drawn(samples=4, model=planner_case.LLAMA_8B, answers=8192, **own):
        batches = {"rollout_batch": answers, "minibatch": 64, "samples_per_prompt": samples, "episodes": 10 * answers}
        resources = StageResources(zero=3, **own)
        stage = replace(STAGE, max_new_tokens=4096, resources=resources, **batches)
        made = planner_case.one(stage, architecture=model).stages[0]
        trainer = made.execution.roles["trainer"].layout
        (term,) = [term for term in made.option.peak.terms if term.name == "policy: keys and values"] or [None]
        return trainer.decode_batch, answers // trainer.data, made, term

    at_once, share, made, term = drawn()
    assert 4 < at_once < share
    assert at_once % 4 == 0, "answers to a prompt share it"
    assert term.formula.startswith(f"{at_once} sequences")
    assert made.option.peak.total_bytes <= made.option.capacity_bytes
    assert drawn(decode_batch=6)[0] == 6
    assert drawn(answers=64)[0] == 0
