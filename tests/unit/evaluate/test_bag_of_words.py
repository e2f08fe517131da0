import numpy as np
import pytest

from charter.artifacts.draws import draw_seed
from charter.errors import DataError
from charter.evaluate.statistics import L2, features, train, vocabulary, words_of

FILLER = ["river", "stone", "lamp", "garden", "window", "paper", "cloud", "bread", "music", "winter"]


def text(seed, *extra):
    words = [FILLER[draw_seed(seed, "word", position) % len(FILLER)] for position in range(8)]
    return " ".join([*words, *extra])


def planted(count, *, start=0):
    """Chosen answers hold `please`, rejected ones `never`; everything else is chance."""
    rows = range(start, start + count)
    return [(text(2 * row, "please"), text(2 * row + 1, "never")) for row in rows]


def shuffled(pairs):
    return [(a, b) if draw_seed(5, index) % 2 else (b, a) for index, (a, b) in enumerate(pairs)]


def accuracy(model, pairs):
    wins = model.wins([a for a, _ in pairs], [b for _, b in pairs])
    return sum(wins) / len(wins)


def test_learns_a_planted_word():
    model = train(planted(200))
    assert accuracy(model, planted(100, start=1000)) == 1.0
    weights = dict(zip(model.words, model.weights, strict=True))
    assert weights["please"] > 0 > weights["never"]


def test_words_of_any_script_are_words():
    assert words_of("Größe 2, привет; l'été") == ["größe", "2", "привет", "l'été"]


def test_learns_nothing_from_shuffled_labels():
    model = train(shuffled(planted(2000)))
    weights = dict(zip(model.words, model.weights, strict=True))
    real = dict(zip(model.words, train(planted(2000)).weights, strict=True))
    assert abs(weights["please"]) < 0.1 * real["please"]


def test_the_fit_is_the_minimum_of_the_penalised_loss():
    pairs = shuffled(planted(60)) + planted(40)
    model = train(pairs)
    difference = features([a for a, _ in pairs], model.words) - features([b for _, b in pairs], model.words)

    def loss(weights):
        return np.log1p(np.exp(-difference @ weights)).mean() + L2 * (weights @ weights) / 2

    for column in range(len(model.words)):
        for step in (-1e-2, 1e-2):
            moved = model.weights.copy()
            moved[column] += step
            assert loss(moved) > loss(model.weights)


def test_the_order_of_the_pairs_does_not_matter():
    pairs = shuffled(planted(50))
    one, other = train(pairs), train(pairs[::-1])
    assert one.words == other.words
    assert np.allclose(one.weights, other.weights, atol=1e-5)


def test_swapping_the_two_answers_mirrors_the_outcome():
    model = train(planted(50))
    pairs = shuffled(planted(40, start=300))
    forth = model.wins([a for a, _ in pairs], [b for _, b in pairs])
    back = model.wins([b for _, b in pairs], [a for a, _ in pairs])
    assert [1 - win for win in back] == forth


def test_texts_without_known_words_tie():
    assert train(planted(20)).wins(["zebra"], ["quartz"]) == [0.5]


def test_words_of_one_answer_only_are_no_features():
    assert vocabulary(["a b", "b c"]) == ("b",)
    with pytest.raises(DataError, match="no word in common"):
        train([("a", "b")])
