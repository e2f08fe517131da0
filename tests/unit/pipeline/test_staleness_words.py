import pytest

from charter.artifacts.fingerprint import describe


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (("spec.learning_rate", 0.0002, 0.0003), "learning_rate 0.0002 -> 0.0003"),
        (("spec.adapter.rank", None, 8), "adapter.rank (none) -> 8"),
        (("inputs.init", ["a"], ["b"]), "input sl_cai changed"),
        (("inputs.policy", None, ["b"]), "input policy added"),
        (("inputs.policy", ["b"], None), "input policy removed"),
        (("seed", 7, 8), "seed 7 -> 8"),
        (("revision", 1, 2), "Charter computes this kind differently (revision 1 -> 2)"),
        (("constitution", "x", "y"), "the constitution changed"),
    ],
)
def test_a_difference_is_said_in_words(difference, words):
    assert describe(*difference, {"init": "sl_cai"}) == words
