from hypothesis import given
from hypothesis import strategies as st

from charter.launch.node_checks import Finding, NodeReport, assign, report_from_json, report_to_json, slow_rates

ECC = Finding(name="accelerator 0", ok=False, found="2 uncorrected ECC errors", advice="reset it")
FINE = Finding(name="disk", ok=True, found="9 GiB free")


def node(rank: int, *findings: Finding, rate: float | None = None) -> NodeReport:
    rates = {} if rate is None else {"matmul_flops_per_second": rate}
    return NodeReport(node=f"n{rank}", rank=rank, findings=(FINE, *findings), rates=rates)


def chosen(*reports: NodeReport, needed: int, expected: int | None = None, slow_ratio: float = 2.0):
    return assign(reports, needed=needed, expected=expected or len(reports), slow_ratio=slow_ratio)


def test_a_spare_takes_the_place_of_a_node_with_memory_errors():
    found = chosen(node(0), node(1, ECC), node(2), needed=2)
    assert found.ranks == (0, 2)
    assert found.left_out == {"n1": "accelerator 0: 2 uncorrected ECC errors"}
    assert [found.place_of(rank) for rank in range(3)] == [0, None, 1]


def test_a_spare_that_is_not_needed_is_not_left_out():
    assert chosen(node(0), node(1), node(2), needed=2) == assign(
        [node(2), node(1), node(0)], needed=2, expected=3, slow_ratio=2.0
    )
    assert chosen(node(0), node(1), node(2), needed=2).left_out == {}


def test_with_too_few_fit_nodes_nobody_starts_and_every_reason_is_told():
    found = chosen(node(0, ECC), node(1), needed=2, expected=3)
    assert found.ranks == ()
    assert set(found.left_out) == {"n0", "node 2"}


def test_a_node_at_less_than_half_of_the_median_speed_is_left_out():
    found = chosen(node(0, rate=10.0), node(1, rate=4.7), node(2, rate=10.0), node(3, rate=9.0), needed=3)
    assert found.ranks == (0, 2, 3)
    assert "4.7" in found.left_out["n1"]
    assert "matmul_flops_per_second" in found.left_out["n1"]


def test_a_node_at_exactly_half_of_the_median_is_kept():
    reports = [node(0, rate=10.0), node(1, rate=5.0), node(2, rate=10.0)]
    assert slow_rates(reports[1], reports, 2.0) == []


def test_two_nodes_are_not_compared_and_three_are():
    pair = [node(0, rate=1.0), node(1, rate=10.0)]
    assert slow_rates(pair[0], pair, 2.0) == []
    assert slow_rates(pair[0], [*pair, node(2, rate=10.0)], 2.0) != []


def test_a_node_alone_has_nobody_to_be_slower_than():
    assert slow_rates(node(0, rate=1.0), [node(0, rate=1.0)], 2.0) == []


@given(
    st.lists(st.tuples(st.booleans(), st.floats(1.0, 100.0)), min_size=1, max_size=8),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_all_nodes_agree_whatever_the_order_of_reports(nodes, needed, random):
    reports = [node(rank, *(() if fit else (ECC,)), rate=rate) for rank, (fit, rate) in enumerate(nodes)]
    first = chosen(*reports, needed=needed)
    random.shuffle(reports)
    assert chosen(*reports, needed=needed) == first
    assert len(first.ranks) in (0, needed)
    assert not {f"n{rank}" for rank in first.ranks} & set(first.left_out)


def test_a_report_survives_json():
    report = node(3, ECC, rate=1.5e9)
    assert report_from_json(report_to_json(report)) == report
