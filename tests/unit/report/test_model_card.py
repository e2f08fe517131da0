from charter.report.export import ScoreMeaning, model_card

RECORD = {
    "stage": "sft",
    "kind": "sft",
    "fingerprint": "ab" * 32,
    "identity": {"spec": {"learning_rate": 0.002, "note": "a|b\n<c>"}, "seed": 7, "constitution": "cd" * 32},
    "inputs": {"init": [{"name": "base", "source": "stage", "fingerprint": "ef" * 32}]},
    "outputs": {"model/config.json": "00"},
    "frozen": {"threads": 2},
    "versions": {"charter": "0.1", "torch": "2.13.0"},
    "step": 1200,
    "target_step": 1200,
    "notes": ["resharded at step 40"],
}
FIGURES = {
    "eval": [
        {"key": "pm.acc", "label": "Accuracy", "unit": "share", "value": 0.577, "low": 0.5, "high": 0.65, "n": 208}
    ]
}


def test_the_card_says_what_it_was_made_from_and_how_it_did():
    card = model_card(RECORD, figures=FIGURES)
    assert card.startswith("---\nlicense: unknown\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    for wanted in (
        "# sft (sft)", "1,200 steps", f"| init | base | stage | `{'ef' * 32}` |", f"`{'cd' * 32}`",
        "| learning_rate | 0.002 |", "| seed | 7 |", "| Accuracy | 57.7 % | 50.0 to 65.0 | 208 |", "| torch | 2.13.0 |",
        "| threads | 2 |", "- resharded at step 40", "Not known.",
    ):  # fmt: skip
        assert wanted in card, wanted
    assert "a\\|b &lt;c>" in card


def test_without_an_evaluation_or_with_a_licence_it_says_so():
    card = model_card(RECORD, figures={}, licence="apache-2.0")
    assert "No evaluation has read this model." in card
    assert "license: apache-2.0" in card
    assert "apache-2.0, as given to `charter artifacts export`" in card


def test_a_score_is_explained_and_another_pooling_than_last_is_warned_of():
    score = ScoreMeaning(pooling="last", bias=0.25, mean=-1.5, deviation=2.0)
    card = model_card(RECORD, figures={}, score=score)
    assert "pipeline_tag: text-classification" in card
    assert "`logit + 0.25`" in card
    assert "minus -1.5, divided by 2.0" in card
    assert "not this model's score" not in card
    mean = model_card(RECORD, figures={}, score=ScoreMeaning(pooling="mean", bias=0.0, mean=0.0, deviation=1.0))
    assert "**The logit is not this model's score**: the model was trained with the pooling `mean`" in mean
