"""The last layer leaves out positions that nobody asks for; what is asked for stays what it was."""

import pytest

torch = pytest.importorskip("torch")

import tiny

from charter.models.parallel import recompute_layers
from charter.models.preference import ScalarModel

pytestmark = pytest.mark.torch
IDS = torch.arange(5, 5 + 24).view(2, 12)
AT = torch.tensor([3, 4, 11, 23])


@pytest.fixture
def scalar():
    found = ScalarModel(tiny.language_model()).eval()
    torch.nn.init.normal_(found.head.weight, generator=torch.Generator().manual_seed(0))
    return found


def seen_by_last_mlp(scalar):
    """Rows that go through the first product of the last layer's feed-forward part, pass by pass."""
    counts = []
    layer = scalar.body.layers[-1].mlp.gate_proj
    layer.register_forward_hook(lambda module, inputs, output: counts.append(output.numel() // output.shape[-1]))
    return counts


def gradients(scalar, loss):
    scalar.zero_grad()
    loss.backward()
    return torch.cat([value.grad.flatten() for value in scalar.parameters() if value.grad is not None])


def test_asked_values_and_their_gradients_are_those_of_the_whole(scalar):
    counts = seen_by_last_mlp(scalar)
    by = torch.tensor([1.0, -2.0, 0.5, 3.0])
    whole = scalar(IDS).flatten()[AT]
    expected = gradients(scalar, (by * whole).sum())
    asked = scalar(IDS, at_N=AT)
    torch.testing.assert_close(asked, whole)
    torch.testing.assert_close(gradients(scalar, (by * asked).sum()), expected)
    scalar(IDS)
    assert counts == [24, 4, 24]


def test_tokens_of_a_language_model_too():
    model = tiny.language_model().model
    counts = []
    model.model.layers[-1].mlp.up_proj.register_forward_hook(lambda *seen: counts.append(seen[2].shape[-2]))
    asked = model(input_ids=IDS, at_N=AT, target_N=torch.tensor([5, 6, 7, 8]))
    logits = model(input_ids=IDS).logits.flatten(0, 1)[AT]
    plain = torch.log_softmax(logits, -1)[torch.arange(4), torch.tensor([5, 6, 7, 8])]
    torch.testing.assert_close(asked.log_probability_N, plain)
    assert counts == [4, 12]


def test_nearly_all_positions_are_computed_together(scalar):
    counts = seen_by_last_mlp(scalar)
    scalar(IDS, at_N=torch.arange(20))
    assert counts == [24]


def test_layers_that_are_computed_again_compute_all_positions(scalar):
    plain = scalar(IDS, at_N=AT)
    expected = gradients(scalar, plain.sum())
    recompute_layers(scalar, "full")
    counts = seen_by_last_mlp(scalar)
    again = scalar(IDS, at_N=AT)
    torch.testing.assert_close(again, plain)
    torch.testing.assert_close(gradients(scalar, again.sum()), expected)
    assert counts == [24, 24]


def test_an_error_in_a_pass_leaves_nothing_behind(scalar):
    handle = scalar.body.norm.register_forward_hook(lambda *seen: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scalar(IDS, at_N=AT)
    handle.remove()
    assert scalar(IDS).shape == IDS.shape
    assert scalar.body.layers[-1].mlp.asked_N is None
