import math
from dataclasses import dataclass, field, replace
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.fingerprint import canonical, differences, fingerprint, stage_identity
from charter.errors import DataError
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import SftStage
from charter.spec.stage_base import StageResources

SFT = SftStage(init="base", data=("a",), steps=10, learning_rate=2e-4)


def identity(spec=SFT, *, name="sft", inputs=None, seed=7, constitution=None):
    return stage_identity(
        spec, name=name, inputs=inputs or {"init": ["m"], "data": ["d"]}, seed=seed, constitution=constitution
    )


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", {1: "x"}, lambda: 0, SftStage])
def test_what_has_no_stable_form_is_refused(value):
    with pytest.raises(DataError, match="no stable form"):
        canonical({"field": value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_are_refused(value):
    with pytest.raises(DataError, match="finite"):
        canonical([value])


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_like, max_size=5))
def test_the_order_of_keys_changes_nothing(value):
    assert fingerprint(value) == fingerprint(dict(reversed(value.items())))


@given(json_like)
def test_canonical_form_is_its_own_canonical_form(value):
    assert canonical(canonical(value)) == canonical(value)


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_a_whole_number_is_the_same_as_int_and_as_float(number):
    assert fingerprint({"epochs": number}) == fingerprint({"epochs": float(number)})


def test_true_and_one_are_different():
    assert fingerprint([True]) != fingerprint([1])


@pytest.mark.parametrize(
    "change",
    [
        {"resources": StageResources(cpus=8)},
        {"checkpoint_every": 3},
        {"timeout": 60.0},
        {"expected_fingerprint": "0" * 64},
    ],
)
def test_execution_fields_never_change_the_fingerprint(change):
    assert fingerprint(identity(replace(SFT, **change))) == fingerprint(identity())


@pytest.mark.parametrize(
    "changed",
    [
        identity(replace(SFT, learning_rate=3e-4)),
        identity(seed=8),
        identity(name="sl_cai"),
        identity(constitution="c"),
        identity(inputs={"init": ["m"], "data": ["other"]}),
        identity(inputs={"init": ["d"], "data": ["m"]}),
        identity(inputs={"init": ["m"], "data": ["d", "d2"]}),
    ],
)
def test_whatever_changes_the_result_changes_the_fingerprint(changed):
    assert fingerprint(changed) != fingerprint(identity())


def test_the_order_of_data_sets_counts():
    first, second = ({"data": order} for order in (["a", "b"], ["b", "a"]))
    assert fingerprint(identity(inputs=first)) != fingerprint(identity(inputs=second))


def test_names_of_inputs_do_not_count():
    renamed = replace(SFT, init="other_name", data=("another",))
    assert fingerprint(identity(renamed)) == fingerprint(identity())


def test_a_raised_revision_changes_the_fingerprint(monkeypatch):
    before = fingerprint(identity())
    monkeypatch.setattr(SftStage, "REVISION", SftStage.REVISION + 1)
    assert fingerprint(identity()) != before


def test_fields_that_are_none_are_left_out():
    assert "epochs" not in identity()["spec"]
    assert "kl_target" not in canonical(PpoStage(policy="p", reward="r", prompts=("x",), episodes=8))


def test_a_field_added_later_counts_only_when_it_is_used():
    @dataclass(frozen=True, kw_only=True)
    class Old:
        rate: float = 0.1

    @dataclass(frozen=True, kw_only=True)
    class New(Old):
        smoothing: float = field(default=0.0, metadata={"added": "0.2"})
        names: tuple[str, ...] = field(default_factory=tuple, metadata={"added": "0.2"})

    assert fingerprint(New()) == fingerprint(Old())
    assert fingerprint(New(smoothing=0.1)) != fingerprint(Old())


def test_an_enum_is_its_value():
    class Kind(Enum):
        A = "a"

    assert canonical(Kind.A) == "a"


def test_the_fingerprint_of_a_known_stage_stays_as_released():
    """A change here means that every finished stage of every user becomes stale: raise a REVISION instead."""
    pinned = stage_identity(
        SftStage(init="b", data=("d",), steps=10, learning_rate=2e-4),
        name="sft",
        inputs={"init": ["x"]},
        seed=1,
        constitution=None,
    )
    assert fingerprint(pinned) == "387a1ed3b4f94358b76e1d2047a98faf34e17cf75cf2f96e4956abe9ef1eb273"


def test_differences_are_named_by_their_path():
    changed = identity(replace(SFT, learning_rate=3e-4), seed=8)
    assert differences(identity(), changed) == [("seed", 7, 8), ("spec.learning_rate", 2e-4, 3e-4)]
