"""The configurations: shapes of models, kinds of stage, lengths, batches; every sequence has exactly its length."""

from dataclasses import dataclass
from typing import Any

from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import Stage, StageResources

SHAPES = {
    "0.1M": Architecture(
        hidden_size=64, num_layers=2, num_heads=4, intermediate_size=176, vocab_size=512,
        tied_embeddings=True, max_position_embeddings=1024,
    ),
    "1M": Architecture(
        hidden_size=128, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=352, vocab_size=1024,
        tied_embeddings=True, max_position_embeddings=1024,
    ),
    "4M": Architecture(
        hidden_size=256, num_layers=4, num_heads=8, intermediate_size=704, vocab_size=2048,
        tied_embeddings=False, max_position_embeddings=1024,
    ),
    "8M-deep": Architecture(
        hidden_size=256, num_layers=10, num_heads=8, num_kv_heads=4, intermediate_size=704, vocab_size=1024,
        tied_embeddings=True, max_position_embeddings=1024,
    ),
    "16M-wide-vocabulary": Architecture(
        hidden_size=256, num_layers=4, num_heads=4, intermediate_size=704, vocab_size=24_000,
        tied_embeddings=False, max_position_embeddings=1024,
    ),
    "16M": Architecture(
        hidden_size=384, num_layers=8, num_heads=6, num_kv_heads=2, intermediate_size=1024, vocab_size=4096,
        tied_embeddings=True, max_position_embeddings=1024,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration."""

    kind: str
    shape: str
    batch: int
    """Rows of an optimizer step (a pair is one row); of PPO the minibatch."""
    micro: int = 0
    """Rows of a forward and backward pass; 0: the whole batch."""
    seq: int = 128
    """Tokens of a sequence; of PPO prompt and answer together, half of them each."""
    recompute: str = "none"
    adapter_rank: int = 0
    dtype: str = "fp32"
    rollout: int = 0
    processes: int = 1
    zero: int = 0
    tensor: int = 1
    context: int = 1

    @property
    def label(self) -> str:
        """For people, and the key of the results."""
        parts = [self.kind, self.shape, f"{self.batch}x{self.seq}"]
        parts += [f"micro {self.micro}"] * bool(self.micro)
        parts += [f"rollout {self.rollout}"] * bool(self.rollout)
        parts += [f"recompute {self.recompute}"] * (self.recompute != "none")
        parts += [f"rank {self.adapter_rank}"] * bool(self.adapter_rank)
        parts += [self.dtype] * (self.dtype != "fp32")
        parts += [f"{self.processes} processes"] * (self.processes > 1)
        parts += [f"{name} {degree}" for name, degree in self.degrees.items()]
        return " ".join(parts)

    @property
    def degrees(self) -> dict[str, int]:
        """What spreads the stage over its processes, where it is not copies alone."""
        degrees = {"zero": self.zero, "tensor": self.tensor, "context": self.context}
        return {name: degree for name, degree in degrees.items() if degree > (name != "zero")}

    @property
    def architecture(self) -> Architecture:
        """The shape by its name."""
        return SHAPES[self.shape]

    def spec(self, steps: int) -> Stage:
        """The stage with so many steps."""
        common: dict[str, Any] = {
            "dtype": self.dtype,
            "learning_rate": 1e-4,
            "checkpoint_every": 10**6,
            "resources": StageResources(
                cpus=1,
                micro_batch=self.micro * (2 if self.kind in ("preference_model", "dpo") else 1) or None,
                recompute=None if self.recompute == "none" else self.recompute,  # type: ignore[arg-type]
                **self.degrees,  # type: ignore[arg-type]
            ),
            "adapter": Adapter(rank=self.adapter_rank) if self.adapter_rank else None,
        }
        if self.kind == "ppo":
            half = self.seq // 2
            return PpoStage(
                policy="m", reward="reward", prompts=("prompts",), episodes=steps * self.rollout,
                rollout_batch=self.rollout, minibatch=self.batch, max_prompt_tokens=half, max_new_tokens=half,
                min_new_tokens=half, **common,
            )  # fmt: skip
        supervised = common | {"steps": steps, "global_batch": self.batch, "seq_len": self.seq, "init": "m"}
        if self.kind == "pretrain":
            return PretrainStage(data=("texts",), **supervised)
        if self.kind == "sft":
            return SftStage(data=("talks",), **supervised)
        if self.kind == "dpo":
            return DpoStage(data=("pairs",), **supervised)
        return PreferenceModelStage(data=("pairs",), **supervised)

    def project(self, steps: int) -> Project:
        """A project of this one stage (and, for PPO, of the stage that makes the reward)."""
        pipeline: dict[str, Any] = {"measured": self.spec(steps)}
        if self.kind == "ppo":
            pipeline["reward"] = PreferenceModelStage(init="m", data=("pairs",), steps=1, seq_len=self.seq)
        return Project(
            name="planned-against",
            models={"m": ModelSpec(architecture=self.architecture)},
            pipeline=pipeline,
            data={name: DataSpec(path=f"{name}.jsonl") for name in ("texts", "talks", "pairs", "prompts")},
            resources=Resources(infra="local", accelerators=(f"cpu:{self.processes}",)),
        )


def cases() -> tuple[Case, ...]:
    """All configurations, in turn by kind, so that a run cut short has some of each."""
    lists = [
        [
            Case(kind="sft", shape="0.1M", batch=8, seq=64),
            Case(kind="sft", shape="1M", batch=16, seq=128),
            Case(kind="sft", shape="1M", batch=16, seq=128, micro=4),
            Case(kind="sft", shape="4M", batch=4, seq=256),
            Case(kind="sft", shape="16M-wide-vocabulary", batch=4, seq=128),
            Case(kind="sft", shape="8M-deep", batch=4, seq=256, recompute="full"),
            Case(kind="sft", shape="8M-deep", batch=4, seq=256),
            Case(kind="sft", shape="4M", batch=4, seq=256, adapter_rank=8),
            Case(kind="sft", shape="4M", batch=4, seq=256, dtype="bf16"),
        ],
        [
            Case(kind="pretrain", shape="1M", batch=8, seq=256),
            Case(kind="pretrain", shape="4M", batch=16, seq=128, micro=8),
            Case(kind="pretrain", shape="16M", batch=4, seq=128),
            Case(kind="pretrain", shape="16M-wide-vocabulary", batch=8, seq=64, micro=2),
            Case(kind="pretrain", shape="1M", batch=8, seq=256, dtype="bf16"),
        ],
        [
            Case(kind="preference_model", shape="0.1M", batch=8, seq=64),
            Case(kind="preference_model", shape="1M", batch=8, seq=128),
            Case(kind="preference_model", shape="8M-deep", batch=4, seq=128),
            Case(kind="preference_model", shape="16M", batch=4, seq=128, micro=2),
            Case(kind="preference_model", shape="8M-deep", batch=4, seq=128, dtype="bf16"),
        ],
        [
            Case(kind="dpo", shape="1M", batch=8, seq=128),
            Case(kind="dpo", shape="4M", batch=4, seq=128),
            Case(kind="dpo", shape="16M", batch=4, seq=128, micro=2),
        ],
        [
            Case(kind="ppo", shape="0.1M", batch=8, seq=64, rollout=16),
            Case(kind="ppo", shape="1M", batch=8, seq=64, rollout=16),
            Case(kind="ppo", shape="1M", batch=8, seq=128, rollout=32),
            Case(kind="ppo", shape="4M", batch=8, seq=64, rollout=16),
            Case(kind="ppo", shape="8M-deep", batch=4, seq=64, rollout=8),
            Case(kind="ppo", shape="16M-wide-vocabulary", batch=4, seq=64, rollout=8),
            Case(kind="ppo", shape="1M", batch=8, seq=128, rollout=32, dtype="bf16"),
        ],
    ]
    lists.append(
        [
            Case(kind="sft", shape="8M-deep", batch=4, seq=256, processes=2),
            Case(kind="sft", shape="8M-deep", batch=4, seq=256, processes=2, zero=3),
            Case(kind="sft", shape="4M", batch=8, seq=128, processes=2, zero=2, micro=2),
            Case(kind="sft", shape="16M-wide-vocabulary", batch=4, seq=128, processes=2, zero=3),
            Case(kind="sft", shape="8M-deep", batch=4, seq=256, processes=2, zero=3, recompute="full"),
            Case(kind="preference_model", shape="8M-deep", batch=4, seq=128, processes=2, zero=3),
            Case(kind="dpo", shape="4M", batch=4, seq=128, processes=2, zero=3),
            Case(kind="sft", shape="8M-deep", batch=4, seq=256, processes=2, tensor=2),
            Case(kind="sft", shape="4M", batch=4, seq=256, processes=2, tensor=2),
            Case(kind="preference_model", shape="8M-deep", batch=4, seq=128, processes=4, tensor=2, zero=3),
            Case(kind="sft", shape="8M-deep", batch=4, seq=256, processes=2, zero=3, context=2),
            Case(kind="sft", shape="4M", batch=4, seq=256, processes=4, zero=3, context=2),
            Case(kind="ppo", shape="4M", batch=8, seq=64, rollout=16, processes=2, zero=3),
        ]
    )
    longest = max(map(len, lists))
    return tuple(items[index] for index in range(longest) for items in lists if index < len(items))
