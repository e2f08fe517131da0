"""Whatever stands in charter.yaml, the loader reads it or raises a SpecError whose problems are told."""

import copy
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charter.engines.project import project_of
from charter.errors import SpecError
from charter.spec.bind import project_yaml
from charter.spec.project import Project
from charter.spec.yaml_source import Document, parse_document
from charter.templates.shipped import shipped_bytes

TEXTS = {name: shipped_bytes(f"{name}/charter.yaml").decode() for name in ("cai-tiny", "cai-8b")}
VALUES = {name: parse_document(text, origin="charter.yaml").value for name, text in TEXTS.items()}
odd_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(
            ["base", "judge", "ppo", "label", "prompts_eval", "H100:8", "1/2", "3/2", "14d", "sft", "auto"]
        ),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Every path inside a value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


PLACES = {name: places(value) for name, value in VALUES.items()}


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_template_with_values_replaced_or_removed_is_read_or_refused(data):
    name = data.draw(st.sampled_from(sorted(VALUES)))
    value = copy.deepcopy(VALUES[name])
    for path in data.draw(st.lists(st.sampled_from(PLACES[name]), min_size=1, max_size=3)):
        holder = value
        for key in path[:-1]:
            holder = holder[key] if isinstance(holder, dict) and key in holder else None
        if not isinstance(holder, dict) or path[-1] not in holder:
            continue
        if data.draw(st.booleans()):
            holder[path[-1]] = data.draw(odd_values)
        else:
            del holder[path[-1]]
    outcome(Document(value=value))


def outcome(document):
    """Load a document; a problem must say something, and a project must survive being written out."""
    try:
        project = project_of(document)
    except SpecError as error:
        told = [problem.message for problem in error.problems]
        assert told != []
        assert "" not in told
        return
    assert isinstance(project, Project)
    assert project_of(parse_document(project_yaml(project), origin="expanded")) == project


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.sampled_from(["name", "models", "data", "pipeline", "preset", "seed", "resources"]), odd_values)
)
def test_any_value_under_the_known_keys_is_read_or_refused(value):
    outcome(Document(value=value))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_a_file_cut_or_overwritten_anywhere_is_read_or_refused(name, data):
    text = TEXTS[name]
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(
        st.sampled_from(["", "\t", "{", "]", ":", "- ", '"', "&a", "*a", "!!x", "#", "\n", "é", json.dumps("x")])
    )
    try:
        document = parse_document(text[:at] + piece + text[at + len(piece) :], origin="charter.yaml")
    except SpecError:
        return
    outcome(document)
