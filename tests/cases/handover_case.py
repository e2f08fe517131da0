"""An engine that takes every field as it is, and refuses one value; projects to hand over to it."""

from dataclasses import replace

from charter.engines import ENGINES, capabilities
from charter.engines.common.engine import EngineCode, TrainingEngine
from charter.engines.common.mapping import FieldMapper, fields_of
from charter.engines.common.rendered import RenderedRun, Resume

REFUSED_RATE = 0.125
EVERY_KIND = ("sft", "preference_model", "dpo", "ppo")


def render_plainly(handover):
    mapper, lines = FieldMapper(handover), []
    told = {row.field for row in mapper.rows}
    for field in fields_of(handover.stage):
        if field in told:
            continue
        if field == "stage.learning_rate" and handover.stage.learning_rate == REFUSED_RATE:
            mapper.refuse(field, "an eighth is too fast")
        mapper.to(field, f"plain.yaml: {field}")
        lines.append(f"{field}: {mapper.value(field)!r}")
    return RenderedRun(
        files={"plain.yaml": "\n".join(lines) + "\n", "deep/nothing.txt": ""},
        command=("python", "-m", "plain", "--rank=${NODE_RANK}", "it's $HOME"),
        mapping=mapper.finish(),
        resume=Resume(guarantee="same_data_order", reason="it counts rows", source="plain/loop.py"),
        environment={"PLAIN_MODE": "on"},
        notes=("bring water",),
    )


def no_adapter(job, python):
    raise AssertionError("nothing runs this engine")


PLAIN = TrainingEngine(
    capabilities=replace(capabilities("trl"), kinds=EVERY_KIND),
    title="Plain",
    package="plain",
    version="1.2.3",
    checked_by="nobody",
    code=lambda: EngineCode(render=render_plainly, adapter=no_adapter),
    data_suffix=".rows",
)


def alone(plain):
    """The list of engines with this one in its place, where it is the only one for which a stage can be rendered."""
    return tuple(plain if engine.name == plain.name else replace(engine, code=None) for engine in ENGINES)


def other_values(field, value, given):
    """Values that a field may have instead: those that are `given` by its name, or others of its type."""
    if field in given:
        return [item for item in given[field] if item != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2 + 2]
    return [0.123 if value is None else value * 0.5 + 0.017]
