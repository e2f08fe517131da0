"""Step 3 of DeepSpeed-Chat as published: one epoch of 256 + 256 tokens, batches of 1,024, on nodes of 8 A100."""

from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project, Resources


def chat_project(resources: Resources) -> Project:
    """Models `actor` and `critic` are filled in by their architectures."""
    return Project(
        name="deepspeed-chat",
        models={"actor": ModelSpec(model="actor"), "critic": ModelSpec(model="critic")},
        data={"prompts": DataSpec(path="absent.jsonl", rows=263_700, mean_tokens=256)},
        pipeline={
            "ppo": PpoStage(
                policy="actor",
                reward="critic",
                prompts=("prompts",),
                episodes=262_144,
                rollout_batch=1024,
                minibatch=1024,
                max_new_tokens=256,
                max_prompt_tokens=256,
            )
        },
        resources=resources,
    )
