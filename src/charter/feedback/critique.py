"""Critique and revision (Bai et al. 2022, section 3): answer, criticise under a drawn principle, revise.

One record per prompt and round. Round r criticises the answer of round r - 1, so a model trained on the records sees
the revisions of all rounds. An empty revision cannot be trained on: it goes to `set_aside.jsonl` with its reason, is
counted, and the next round starts from the last answer that was not empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.inputs import load_role, role_constitution, role_prompts
from charter.feedback.records import Batch, in_batches, make_records
from charter.feedback.sampling import Sampled, check_context, sample
from charter.models.language_model import LanguageModel
from charter.models.runtime import configure
from charter.spec.dataset import Prompt, Turn
from charter.spec.stage import CritiqueStage

EMPTY_REVISION = "empty revision"


@dataclass
class Draft:
    """The answer to one prompt as the rounds go on."""

    prompt: Prompt
    answer: str
    kept: list[dict[str, Any]] = field(default_factory=list)
    set_aside: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Reviser:
    """The models, the constitution and the seed of one critique stage."""

    policy: LanguageModel
    critic: LanguageModel
    constitution: Constitution
    spec: CritiqueStage
    seed: int
    stage: str

    def make(self, prompts: Sequence[Prompt]) -> Batch:
        """All rounds of one batch."""
        answers = self._sample(self.policy, [prompt.turns for prompt in prompts], prompts, "answer", 0)
        drafts = [Draft(prompt, text) for prompt, text in zip(prompts, answers.texts, strict=True)]
        tokens = answers.tokens
        for number in range(1, self.spec.revisions + 1):
            tokens += self._round(drafts, prompts, number)
        return Batch(
            records=[record for draft in drafts for record in draft.kept],
            set_aside=[record for draft in drafts for record in draft.set_aside],
            totals={
                "prompts": len(prompts),
                "empty_first_answers": sum(not text for text in answers.texts),
                "unchanged_revisions": sum(
                    record["revision_response"] == record["init_response"] for draft in drafts for record in draft.kept
                ),
            },
            tokens=tokens,
        )

    def _round(self, drafts: Sequence[Draft], prompts: Sequence[Prompt], number: int) -> int:
        """One critique and one revision of every draft; returns the tokens generated."""
        principles = [self.constitution.draw(self.seed, self.stage, prompt.id, number) for prompt in prompts]
        asked = [critique_turns(draft, principle) for draft, principle in zip(drafts, principles, strict=True)]
        critiques = self._sample(self.critic, asked, prompts, "critique", number)
        asked = [
            revision_turns(turns, critique, principle)
            for turns, critique, principle in zip(asked, critiques.texts, principles, strict=True)
        ]
        revisions = self._sample(self.critic, asked, prompts, "revision", number)
        for draft, principle, critique, revision in zip(
            drafts, principles, critiques.texts, revisions.texts, strict=True
        ):
            record = _record(draft, principle, critique, revision, number)
            if revision:
                draft.kept.append(record)
                draft.answer = revision
            else:
                draft.set_aside.append({"reason": EMPTY_REVISION, **record})
        return critiques.tokens + revisions.tokens

    def _sample(
        self,
        model: LanguageModel,
        conversations: Sequence[Sequence[Turn]],
        prompts: Sequence[Prompt],
        purpose: str,
        number: int,
    ) -> Sampled:
        seeds = [draw_seed(self.seed, self.stage, prompt.id, purpose, number) for prompt in prompts]
        return sample(model, conversations, seeds=seeds, spec=self.spec)


def critique_turns(draft: Draft, principle: Principle) -> tuple[Turn, ...]:
    """What the critic reads before its critique."""
    return (*draft.prompt.turns, Turn("assistant", draft.answer), Turn("user", principle.critique))


def revision_turns(turns: Sequence[Turn], critique: str, principle: Principle) -> tuple[Turn, ...]:
    """What the critic reads before its revision."""
    return (*turns, Turn("assistant", critique), Turn("user", principle.revision))


def _record(draft: Draft, principle: Principle, critique: str, revision: str, number: int) -> dict[str, Any]:
    prompt = [{"role": turn.role, "content": turn.content} for turn in draft.prompt.turns]
    return {
        "id": f"{draft.prompt.id}/round-{number}",
        "messages": [*prompt, {"role": "assistant", "content": revision}],
        "init_prompt": draft.prompt.turns[-1].content,
        "init_response": draft.answer,
        "critic_prompt": principle.critique,
        "critic_response": critique,
        "revision_prompt": principle.revision,
        "revision_response": revision,
        "principle": principle.id,
        "round": number,
    }


def _summary(totals: Mapping[str, float]) -> dict[str, float]:
    """What is reported of the batches so far."""
    return {
        "prompts": totals["prompts"],
        "empty_first_answers": totals["empty_first_answers"],
        "empty_revisions": totals["set_aside"],
        "unchanged_revision_share": totals["unchanged_revisions"] / max(totals["records"], 1),
    }


def run(stage: StageDir) -> None:
    """Make the records of a critique stage."""
    job, spec = stage.job, stage.job.spec
    assert isinstance(spec, CritiqueStage)
    device = configure(job.frozen)
    policy = load_role(job, "policy", device)
    same = job.only("policy").location() == job.only("critic").location()
    critic = policy if same else load_role(job, "critic", device)
    check_context(policy, spec, role="policy")
    check_context(critic, spec, role="critic")
    reviser = Reviser(
        policy=policy,
        critic=critic,
        constitution=role_constitution(job),
        spec=spec,
        seed=job.seed,
        stage=job.stage,
    )
    prompts = role_prompts(job, "prompts", limit=spec.num_prompts)
    make_records(stage, in_batches(prompts, spec.rollout_batch), reviser.make, summarise=_summary)


if __name__ == "__main__":
    stage_main(run)
