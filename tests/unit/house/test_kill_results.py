import sys
from pathlib import Path

import kill_results

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "integration" / "kills"))
import layouts


def case(test="random", kind="ppo", layout="1", kills=10, runs=2, mismatches=0, lost=0, doubled=0, seed=1):
    return {"test": test, "kind": kind, "layout": layout, "kills": kills, "runs": runs, "mismatches": mismatches,
            "lost": lost, "doubled": doubled, "seed": seed, "at": "2026-11-21T03:00:00+00:00"}  # fmt: skip


CASES = [case(), case(kind="sft", kills=5, lost=1), case(layout="4 FSDP2", kills=7, runs=1, doubled=2)]


def test_layouts_are_added_up_in_their_order():
    one, four = kill_results.totals([*reversed(CASES), case(test="flips")], "random")
    assert (one.layout, one.kinds, one.kills, one.runs, one.lost, one.doubled) == ("1", "ppo, sft", 15, 4, 1, 0)
    assert (four.layout, four.kills, four.doubled) == ("4 FSDP2", 7, 2)


def test_every_layout_that_is_killed_has_its_place():
    assert [
        case.layout for case in kill_results.totals([case(layout=name) for name in layouts.LAYOUTS], "random")
    ] == list(layouts.LAYOUTS)


def test_the_page_says_how_often_and_how_sure():
    text = kill_results.page([*CASES, case(test="flips", kills=240)], machine="a machine", found=["a defect"])
    assert "SIGKILL ended a process of a stage or a run 22 times; 0 of the runs" in text
    assert "**14 %** (95 %, 3/N)" in text
    assert "| 4 FSDP2 | ppo | 7 | 1 | 0 | 0 | 2 |" in text
    assert "Total 240; 95 % bound 1.2 %." in text
    assert "- Seeds: 1\n" in text
    assert text.endswith("## Found and fixed\n\n- a defect\n")


def test_a_mismatch_is_not_hidden_behind_a_bound():
    text = kill_results.page([case(mismatches=1)], machine="a machine", found=[])
    assert "1 of the runs ended with different" in text
    assert "not bounded" in text
    assert "Found" not in text


def test_without_results_it_says_what_it_needs(capsys, tmp_path):
    assert kill_results.main([str(tmp_path / "missing")]) == 2
    assert "CHARTER_KILL_RESULTS" in capsys.readouterr().err
