"""PPO workloads and places for tests, without files."""

from dataclasses import replace

from charter.catalog import accelerators, models
from charter.plan.knowledge import shipped
from charter.plan.node_needs import checkpoint_bytes
from charter.plan.offers import NodeOffer, Price
from charter.plan.option import StageQuestion
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.spec.ppo_stage import PpoStage


def without_value(work):
    """The same with an estimator that compares answers."""
    return replace(
        work,
        roles=tuple(role for role in work.roles if role.name != "value"),
        phases=tuple(phase for phase in work.phases if phase.role != "value"),
    )


def scored_by_functions(work, *, reference):
    """The same with functions as rewards, and a reference where a KL penalty reads one."""
    names = ("policy", "reference") if reference else ("policy",)
    return replace(
        work,
        roles=tuple(role for role in work.roles if role.name in names),
        phases=tuple(phase for phase in work.phases if phase.role in names),
    )


def policy_alone(work):
    """The same with functions as rewards, no KL penalty, and a generator that draws ahead."""
    return replace(
        work,
        roles=tuple(role for role in work.roles if role.name == "policy"),
        phases=tuple(phase for phase in work.phases if phase.role == "policy" and phase.work != "score"),
        ahead=True,
    )


def workload(
    policy="Llama-3.1-8B", value=None, *, critic=True, samples=512, minibatch=128, rollouts=100, prompt=512, new=512
):
    """All roles of PPO; without a critic those of GRPO with a rule as reward."""
    architecture, other = (models.get(name).architecture for name in (policy, value or policy))
    whole, share = prompt + new, new / (prompt + new)
    roles = [
        Role(name="policy", architecture=architecture, model="p", trained=True),
        Role(name="reference", architecture=architecture, model="p"),
    ]
    if critic:
        roles += [
            Role(name="value", architecture=other, model="v", trained=True, scalar_head=True),
            Role(name="reward", architecture=other, model="v", scalar_head=True),
        ]

    def phase(name, work, role, steps, batch, read, new_tokens=0.0):
        return RolePhase(
            name=name,
            work=work,
            role=role,
            steps=steps,
            batch=batch,
            prompt_tokens=read,
            new_tokens=new_tokens,
            longest_tokens=whole,
            logit_share=share,
        )

    updates = rollouts * samples / minibatch
    phases = [phase("generate", "generate", "policy", rollouts, samples, prompt, new)]
    phases += [phase(f"score {role.name}", "score", role.name, rollouts, samples, whole) for role in roles]
    phases += [
        phase(f"train {role.name}", "train", role.name, updates, minibatch, whole) for role in roles if role.trained
    ]
    return Workload(roles=tuple(roles), phases=tuple(phases), counters=Counters(), together=True)


def question(work, engine, *, use_spot=False):
    """One stage to be placed."""
    return StageQuestion(
        stage=PpoStage(policy="p", reward="v", prompts=("d",), episodes=1000),
        work=work,
        dtype="bf16",
        checkpoint_bytes=checkpoint_bytes(work),
        use_spot=use_spot,
        knowledge=shipped(),
        engine=engine,
    )


def place(name, per_node=8, *, nodes=(1,), usd=2.0, infra="aws"):
    """A node at a provider."""
    return NodeOffer(
        infra=infra,
        region="r",
        accelerator=accelerators.get(name),
        per_node=per_node,
        instance="x",
        price=Price(market="on_demand", usd_per_hour=usd, source="test", as_of=""),
        nodes=nodes,
    )
