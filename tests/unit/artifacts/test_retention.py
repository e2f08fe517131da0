import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from charter.artifacts.checkpoints import CheckpointRetention, Held, Position, position_of


def held(*steps, verified=True, **metrics):
    return [Held(position=Position(step), verified=verified, metric=metrics.get(f"at_{step}")) for step in steps]


def test_the_last_ones_stay():
    assert CheckpointRetention(keep_last=2).removable(held(1, 2, 3, 4)) == [Position(1), Position(2)]
    assert CheckpointRetention(keep_last=1).removable(held(1, 2, 3, 4)) == [Position(1), Position(2), Position(3)]
    assert CheckpointRetention(keep_last=4).removable(held(1, 2, 3, 4)) == []


def test_parts_of_a_step_come_after_it_and_are_not_on_the_grid():
    positions = [Position(4), Position(4, 1), Position(4, 2), Position(5)]
    found = CheckpointRetention(keep_last=1, keep_every=4).removable(
        [Held(position=p, verified=True) for p in positions]
    )
    assert found == [Position(4, 1), Position(4, 2)]


def test_nothing_goes_while_the_newest_is_not_verified():
    assert CheckpointRetention(keep_last=1).removable([*held(1, 2, 3), *held(4, verified=False)]) == []


def test_one_verified_one_is_kept_even_where_none_is_asked_for():
    assert CheckpointRetention(keep_last=0).removable(held(1, 2)) == [Position(1)]


def test_only_verified_ones_count():
    assert CheckpointRetention(keep_last=2).removable([*held(1), *held(2, 3, verified=False), *held(4)]) == []
    assert CheckpointRetention(keep_last=2).removable([*held(1, 2), *held(3, verified=False), *held(4)]) == [
        Position(1)
    ]


def test_best_is_newest_of_equals_and_needs_a_metric():
    found = CheckpointRetention(keep_last=1, keep_best=True).removable(
        held(1, 2, 3, 4, 5, at_2=0.5, at_3=0.5, at_4=-9.0)
    )
    assert found == [Position(1), Position(2), Position(4)]
    assert CheckpointRetention(keep_last=1, keep_best=False).removable(held(1, 2, at_1=9.0)) == [Position(1)]
    assert CheckpointRetention(keep_last=1, keep_best=True).removable(held(1, 2)) == [Position(1)]


def test_there_is_always_one_to_go_back_to():
    """Simulated saves: from any step after the newest, a checkpoint lies at most twice the distance back."""
    for every, back in ((1, 2), (1, 5), (10, 25), (100, 100), (100, 150)):
        retention, there = CheckpointRetention(keep_last=1, go_back_steps=back), []
        for newest in range(every, 12 * every + 10 * back, every):
            there.append(newest)
            gone = {item.step for item in retention.removable(held(*there))}
            there = [step for step in there if step not in gone]
            assert len(there) <= 4
            early = [step for step in there if step <= newest - back]
            assert early or there[0] == every, "none is early enough, and none was removed that is"
            assert not early or max(early) >= newest - 2 * back - 2 * every
    assert CheckpointRetention(keep_last=1, go_back_steps=None).removable(held(1, 2, 3)) == [Position(1), Position(2)]


def test_what_is_pinned_stays():
    pinned = Held(position=Position(1), verified=False, pinned=True)
    assert CheckpointRetention(keep_last=1).removable([pinned, *held(2, 3)]) == [Position(2)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.booleans(), st.booleans()), max_size=12),
       st.integers(0, 4), st.none() | st.integers(1, 5))  # fmt: skip
@settings(deadline=None)
def test_enough_verified_ones_are_always_left(found, keep_last, keep_every):
    there = {Position(s, p): Held(position=Position(s, p), verified=v, pinned=pin) for s, p, v, pin in found}
    gone = CheckpointRetention(keep_last=keep_last, keep_every=keep_every).removable(there.values())
    left = [item for position, item in there.items() if position not in gone]
    before, after = (sum(item.verified for item in items) for items in (there.values(), left))
    assert after >= min(before, max(1, keep_last))
    assert not any(there[position].pinned for position in gone)
    assert gone == sorted(gone)
    if gone:
        assert max(there) not in gone
        assert there[max(there)].verified


def test_names_and_positions_are_one_to_one_and_sort_alike():
    positions = [
        Position(step, part) for step, part in itertools.product((0, 9, 10, 99_999_999, 100_000_000), range(4))
    ]
    assert [position_of(position.directory) for position in positions] == positions
    assert sorted(positions) == positions
    for name in ("step-1", "step-00000001-0", "step-00000001.damaged-1", ".tmp-step-00000001-aa", "step-00000001-"):
        assert position_of(name) is None
