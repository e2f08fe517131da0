"""Resident memory of a stage's process beside its tensors: the plan's figure against a process that trains."""

import json
import subprocess
import sys

import pytest

from charter.physics.constants import CPU_PROCESS_BYTES, LIBRARY_BYTES

pytestmark = pytest.mark.torch
PROCESS = """
import json


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


import torch

with_torch = resident()
import charter.train.sft
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=320)
model = LlamaForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
model(input_ids=torch.randint(0, 320, (4, 32))).logits.float().square().mean().backward()
optimizer.step()
tensors = 16 * sum(item.numel() for item in model.parameters())
print(json.dumps([with_torch, resident() - tensors]))
"""


def test_a_process_holds_what_is_planned_beside_its_tensors():
    said = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, text=True, check=True).stdout
    with_torch, trained = json.loads(said)
    assert with_torch == pytest.approx(LIBRARY_BYTES, rel=0.2)
    assert trained == pytest.approx(CPU_PROCESS_BYTES, rel=0.2)
