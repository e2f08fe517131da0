"""The loss that an export carries for prime-rl, summed over answers as that trainer does, against Charter's own."""

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from charter.engines.prime_rl.mapping import LOSS_TEXT
from charter.train.ppo_math import clipped_policy_loss

ANSWERS, TOKENS = 6, 9
OPTIONS: list[dict[str, Any]] = [
    {"low": 0.2, "high": 0.2, "dual_clip": None, "surrogate": "clip"},
    {"low": 0.2, "high": 0.28, "dual_clip": None, "surrogate": "clip"},
    {"low": 0.1, "high": 0.2, "dual_clip": 1.5, "surrogate": "clip"},
    {"low": 0.2, "high": 0.28, "dual_clip": None, "surrogate": "cispo"},
    {"low": 1.0, "high": 0.2, "dual_clip": None, "surrogate": "cispo"},
]


@dataclass
class LossOutputs:
    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The function of charter_loss.py; what it takes of prime-rl is one class of two fields."""
    for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.trainer.rl.loss"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["prime_rl.trainer.rl.loss"], "LossOutputs", LossOutputs, raising=False)
    (tmp_path / "charter_loss.py").write_text(LOSS_TEXT)
    return runpy.run_path(str(tmp_path / "charter_loss.py"))["loss"]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient_are_those_of_the_native_engine(exported: Any, options: dict[str, Any], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    new = (torch.randn(ANSWERS, TOKENS, generator=draw, dtype=torch.float64) - 2).requires_grad_()
    drawn = new.detach() + 0.4 * torch.randn(ANSWERS, TOKENS, generator=draw, dtype=torch.float64)
    mask = torch.rand(ANSWERS, TOKENS, generator=draw) < 0.7
    mask[0] = False
    advantage = torch.randn(ANSWERS, 1, generator=draw, dtype=torch.float64).expand(ANSWERS, TOKENS)
    ours, clipped = clipped_policy_loss(
        new, drawn, advantage, mask, clip_ratio=options["low"], clip_ratio_high=options["high"],
        surrogate=options["surrogate"], dual_clip=options["dual_clip"],
    )  # fmt: skip
    (wanted,) = torch.autograd.grad(ours.mean, new)
    outputs = [
        exported(
            SimpleNamespace(
                trainer_logprobs=new[row], inference_logprobs=drawn[row], advantages=advantage[row],
                loss_mask=mask[row], loss_weights=None,
            ),
            **options,
        )
        for row in range(ANSWERS)
    ]  # fmt: skip
    total = sum(item.loss for item in outputs) / mask.sum()
    assert total.item() == pytest.approx(ours.mean.item(), rel=1e-12)
    (given,) = torch.autograd.grad(total, new)
    torch.testing.assert_close(given, wanted, rtol=1e-12, atol=1e-15)
    shares = [item.metrics["clip_fraction"] * row.sum() for item, row in zip(outputs, mask, strict=True)]
    assert (sum(shares) / mask.sum()).item() == pytest.approx(clipped.mean.item(), rel=1e-6)


def test_masked_tokens_and_weights_of_0_count_for_nothing(exported: Any) -> None:
    options = OPTIONS[0]
    new, drawn = torch.tensor([-1.0, -900.0, -1.5]), torch.tensor([-1.25, 0.0, -1.25])
    inputs = SimpleNamespace(
        trainer_logprobs=new, inference_logprobs=drawn, advantages=torch.ones(3),
        loss_mask=torch.tensor([True, False, True]), loss_weights=None,
    )  # fmt: skip
    whole = exported(inputs, **options).loss.item()
    assert whole == pytest.approx(-(1.2 + torch.tensor(-0.25).exp().item()))
    inputs.loss_weights = torch.tensor([1.0, 1.0, 0.0])
    assert exported(inputs, **options).loss.item() == pytest.approx(-1.2)
