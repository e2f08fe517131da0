"""A preference model with a head that is not zero."""

import torch
from tiny import language_model

from charter.models.preference import PreferenceModel, ScalarModel


def preference_model(path, **changes):
    """Write one, and return it."""
    settings = {"pooling": "last", "context": "full", "seq_len": 64, "score_mean": 0.0, "score_deviation": 1.0}
    base = language_model()
    scalar = ScalarModel(base)
    with torch.no_grad():
        scalar.head.weight.copy_(torch.linspace(-1, 1, scalar.head.weight.numel())[None])
        scalar.head.bias.fill_(0.3)
    model = PreferenceModel(scalar, base, {**settings, **changes})
    model.save(path)
    return model
