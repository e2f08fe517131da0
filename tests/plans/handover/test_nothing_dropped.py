"""Whatever a field of a stage says reaches the engine, or is refused by name, or is Charter's own work."""

import json
import re
from dataclasses import fields, replace

import handover_stages as cases
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.engines import capabilities, handover_engines, render
from charter.engines.common.mapping import CHARTERS_OWN, FieldMapper, fields_of
from charter.errors import SpecError
from charter.spec.layout import Adapter, Layout

PAIRS = cases.pairs()
ON_NODES = [
    (engine, kind, nodes)
    for engine, kind in PAIRS
    for nodes in (1, 2)
    if nodes == 1 or (engine, kind) not in cases.GENERATING
]
"""Two nodes for all but an engine whose roles and generator lie on one."""
CHOOSES_THE_RENDERER = ("kind", "engine")
CHOSEN_BY_THE_ENGINE = ("generator",)
"""Who samples is an execution field; an engine that has one generator says so in the note."""
DECIDES_NOTHING = "decides nothing here"
"""Begins the note of a field that only counts beside another one (kl_horizon without kl_target)."""
ENGINE_ATTENTION = {"openrlhf": "flash_attention_2", "skyrl": "flash_attention_2"}
"""What an engine takes where the stage names no attention."""
BESIDE = {"rloo": ("whiten_advantages",)}
"""Fields whose usual value an estimator excludes: the refusal names them, and not the estimator."""
PLACES = re.compile(r"(?<![\w.}/:-])/(?:home|root|work|tmp|mnt|opt|var|Users|usr/(?!bin/env))/?")
OPTION = re.compile(r"--[a-zA-Z][\w.-]*")


def rendered(stage, layout=None, **more):
    return render(cases.handover(stage, layout or cases.layout_of(stage), **more))


def text_of(made):
    """Everything that the engine is given."""
    return (dict(made.files), made.command, dict(made.environment))


def refusals(made):
    return {problem.path: problem.message for problem in made.problems}


def check_refused(error, stage, changed):
    """A refusal names fields that exist, with a reason each, and what was changed, or is gone without the change."""
    known = {f"pipeline.{cases.NAME}.{item.name}" for item in fields(stage)}
    known |= {f"layout.{item.name}" for item in fields(Layout)} | {"seed"}
    for path, message in refusals(error).items():
        assert path in known, path
        assert len(message) > 20, path
    told = " ".join(f"{path} {message}" for path, message in refusals(error).items())
    said = [name for name in changed if re.search(rf"\b{name}\b", told)]
    said += [value for value in changed.values() if isinstance(value, str) and re.search(rf"\b{value}\b", told)]
    together = (
        {f"pipeline.{cases.NAME}.{name}" for name in BESIDE.get(stage.estimator, ())} if stage.kind == "ppo" else ()
    )
    assert said or set(refusals(error)) & set(together), f"{changed} not named in: {told}"


def check_counted(stage, field, one, other, mapping, *, name):
    """Another value of a field is seen in what the engine is given, or the mapping says who does it."""
    if text_of(one) != text_of(other):
        return
    row = next(row for row in mapping if row.field == field)
    own = row.how == "charter" and row.note
    nothing = row.how == "same" and row.note.startswith(DECIDES_NOTHING)
    theirs = name in CHOSEN_BY_THE_ENGINE and row.note
    assert own or nothing or theirs, f"{stage.engine} {stage.kind}: {name} is dropped without a word ({row})"


@st.composite
def changed_stages(draw):
    """An engine, a kind, and a stage with other values in some fields."""
    engine, kind = draw(st.sampled_from(PAIRS))
    names = draw(st.lists(st.sampled_from(sorted(cases.OTHER_VALUES[kind])), min_size=1, max_size=3, unique=True))
    changes = {name: draw(st.sampled_from(cases.OTHER_VALUES[kind][name])) for name in names}
    if "epochs" in changes and "steps" not in changes:
        changes["steps"] = None
    base = cases.accepted_stage(engine, kind)
    return base, {name: value for name, value in changes.items() if getattr(base, name) != value}


def test_every_field_of_every_kind_has_other_values_to_be_tried():
    for kind, stage in cases.STAGES.items():
        tried = set(cases.OTHER_VALUES[kind]) | set(CHOOSES_THE_RENDERER)
        assert tried == {item.name for item in fields(stage)}, kind
    assert set(cases.OTHER_LAYOUTS) == {item.name for item in fields(Layout)}


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_each_field_alone_counts(engine, kind):
    base = cases.accepted_stage(engine, kind)
    plain = rendered(base)
    for name, values in cases.OTHER_VALUES[kind].items():
        for value in [value for value in values if value != getattr(base, name)]:
            changes = {name: value, **({"steps": None} if name == "epochs" else {})}
            stage = replace(base, **changes)
            try:
                made = rendered(stage)
            except SpecError as error:
                check_refused(error, stage, changes)
                continue
            if name == "resources":
                default = value.attention == ENGINE_ATTENTION.get(engine)
                assert text_of(made) != text_of(plain) or default, f"{engine} {kind}: {value} is dropped"
            else:
                check_counted(stage, f"stage.{name}", made, plain, made.mapping, name=name)


@pytest.mark.parametrize("adapter", [None, Adapter(rank=8, base_bits=4)], ids=["whole", "adapter"])
@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_fp8_is_written_or_refused_by_name_and_never_taken_for_16_bits(engine, kind, adapter):
    stage = cases.accepted_stage(engine, kind, dtype="fp8", adapter=adapter)
    if kind in capabilities(engine).fp8_kinds and adapter is None:
        row = next(row for row in rendered(stage).mapping if row.field == "stage.dtype")
        assert any("fp8" in place for place in row.to)
        return
    with pytest.raises(SpecError) as found:
        rendered(stage)
    told = refusals(found.value)
    if not capabilities(engine).fp8_kinds:
        assert f"{engine} cannot express fp8" in told[f"pipeline.{cases.NAME}.dtype"]


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_each_field_of_a_layout_counts(engine, kind):
    base = cases.accepted_stage(engine, kind)
    plain = rendered(base)
    for name, values in cases.OTHER_LAYOUTS.items():
        for value in values:
            layout = cases.layout_of(base, **{name: value})
            if layout == cases.layout_of(base):
                continue
            try:
                made = rendered(
                    base, layout, per_node=min(8, layout.num_accelerators), nodes=-(-layout.num_accelerators // 8)
                )
            except SpecError as error:
                told = " ".join(f"{path} {message}" for path, message in refusals(error).items())
                known = (name, "accelerators", *(("offload_optimizer",) if name == "offload_parameters" else ()))
                assert any(re.search(rf"\b{word}\b", told) for word in known), f"{engine} {kind} {name}: {told}"
                continue
            check_counted(base, f"layout.{name}", made, plain, made.mapping, name=name)


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_the_seed_and_the_kept_checkpoints_count(engine, kind):
    base = cases.accepted_stage(engine, kind)
    assert text_of(rendered(base, seed=8)) != text_of(rendered(base))


@settings(max_examples=150)
@given(changed_stages())
def test_several_fields_at_once_lose_none_of_them(drawn):
    base, changes = drawn
    stage = replace(base, **changes)
    try:
        made = rendered(stage)
    except SpecError as error:
        check_refused(error, stage, changes)
        return
    assert text_of(made) == text_of(rendered(stage))
    for name in changes:
        if name in ("resources", "steps", "epochs"):
            continue
        without = replace(stage, **{name: getattr(base, name)})
        try:
            other = rendered(without)
        except SpecError:
            continue
        check_counted(stage, f"stage.{name}", made, other, made.mapping, name=name)


@pytest.mark.parametrize(("engine", "kind"), PAIRS)
def test_the_mapping_tells_of_every_field_once_and_of_places_that_exist(engine, kind):
    base = cases.accepted_stage(engine, kind)
    made = rendered(base)
    assert [row.field for row in made.mapping] == list(fields_of(base))
    words = " ".join(made.command)
    for row in made.mapping:
        if row.field.startswith("stage.") and row.field.removeprefix("stage.") in CHARTERS_OWN:
            continue
        assert row.to or row.note, row
        for place in row.to:
            file, _, key = place.partition(": ")
            if file in made.files:
                check_key(made.files[file], file, key, row)
            elif option := OPTION.search(place):
                assert option.group() in words or any(option.group() in text for text in made.files.values()), row
            else:
                assert "." not in file.partition(" ")[0], f"{row}: no file {file}"


def check_key(text, file, key, row):
    """The dotted key stands in the file."""
    if not file.endswith((".yaml", ".json")) or not key:
        return
    found = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    flat = "\n".join(flattened(found))
    assert key.split(" ")[0].rstrip(",") in flat, f"{row}: {key} is not in {file}"


def flattened(value, at=""):
    """Dotted names of everything in a mapping, without the numbers of list items."""
    yield at
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from flattened(inside, f"{at}.{name}" if at else str(name))
    elif isinstance(value, list):
        for inside in value:
            yield from flattened(inside, at)


@pytest.mark.parametrize(("engine", "kind", "nodes"), ON_NODES)
def test_files_parse_and_give_nothing_away(engine, kind, nodes, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a_secret_that_must_not_leak")
    stage = cases.accepted_stage(engine, kind)
    made = rendered(stage, cases.layout_of(stage, data=8 * nodes if nodes > 1 else None), nodes=nodes)
    assert made.command[0] in ("python", "bash", "ray")
    for name, text in made.files.items():
        assert not name.startswith(("/", "..")), name
        if name.endswith(".yaml"):
            assert isinstance(yaml.safe_load(text), dict), name
        if name.endswith(".json"):
            json.loads(text)
    everything = json.dumps(
        [dict(made.files), made.command, dict(made.environment), [str(row) for row in made.mapping]]
    )
    assert "hf_a_secret" not in everything
    assert not PLACES.search(everything), PLACES.search(everything)
    if nodes > 1:
        # XPK and Ray start every host themselves; elsewhere a node must know its place.
        assert any(word in everything for word in ("NODE_RANK", "ray", "xpk"))


def test_a_renderer_that_forgets_a_field_is_a_defect():
    mapper = FieldMapper(cases.handover(cases.accepted_stage("trl", "sft")))
    with pytest.raises(AssertionError, match=r"not mapped: .*stage\.learning_rate"):
        mapper.finish()


@pytest.mark.parametrize("engine", handover_engines(), ids=lambda engine: engine.name)
def test_every_engine_says_what_it_is_and_how_it_is_checked(engine):
    assert engine.title
    assert engine.package
    assert engine.checked_by
    assert re.match(r"^[\d.]+|^[0-9a-f]{7}", engine.version), engine.version
    for kind in engine.kinds:
        resume = rendered(cases.accepted_stage(engine.name, kind)).resume
        assert len(resume.reason) > 20
        assert resume.source
