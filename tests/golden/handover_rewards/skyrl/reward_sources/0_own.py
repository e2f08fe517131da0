"""A function of a user."""


def polite(answer, word="please"):
    return float(word in answer)
