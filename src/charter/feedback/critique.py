"""Critique and revision (Bai et al. 2022, section 3): answer, criticise under a drawn principle, revise.

One record per prompt and round. Round r criticises the answer of round r - 1, so a model trained on the records sees
the revisions of all rounds. An empty revision cannot be trained on: it goes to `set_aside.jsonl` with its reason, is
counted, and the next round starts from the last answer that was not empty.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from charter.artifacts.draws import draw_seed, permuted
from charter.artifacts.job import Job
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.data.dataset import Conversation, Prompt, Turn
from charter.feedback.answering import open_answerer
from charter.feedback.asking import Ask, Reply, Text, sample_of, text_facts
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.inputs import prompt_batches, role_constitution, role_critiques
from charter.feedback.records import BatchResult, Making, make_records
from charter.feedback.wording import wording_fingerprint
from charter.spec.stage import CritiqueStage

EMPTY_REVISION, REFUSED = "empty revision", "refused"


@dataclass
class Draft:
    """The answer to one prompt as the rounds go on."""

    prompt: Prompt
    answer: str
    kept: list[dict[str, Any]] = field(default_factory=list)
    set_aside: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Reviser:
    """The constitution, the settings and the seed of one critique stage."""

    job: Job
    spec: CritiqueStage
    constitution: Constitution
    demonstrations: Sequence[Conversation] = ()

    def make(self, prompts: Sequence[Prompt]) -> Making[BatchResult]:
        """All rounds of one batch."""
        answers = yield from self._sample("policy", [prompt.turns for prompt in prompts], prompts, "answer", 0)
        drafts = [Draft(prompt, answer.text) for prompt, answer in zip(prompts, answers, strict=True)]
        tokens = sum(answer.tokens for answer in answers)
        for number in range(1, self.spec.revisions + 1):
            tokens += yield from self._round(drafts, prompts, number)
        return BatchResult(
            records=[record for draft in drafts for record in draft.kept],
            set_aside=[record for draft in drafts for record in draft.set_aside],
            totals={
                "prompts": len(prompts),
                "empty_first_answers": sum(not answer.text for answer in answers),
                "refused_revisions": sum(row["reason"] == REFUSED for draft in drafts for row in draft.set_aside),
                "unchanged_revisions": sum(
                    record["revision_response"] == record["init_response"] for draft in drafts for record in draft.kept
                ),
            },
            tokens=tokens,
        )

    def _round(self, drafts: Sequence[Draft], prompts: Sequence[Prompt], number: int) -> Making[int]:
        """One critique and one revision of every draft; returns the tokens generated."""
        job = self.job
        principles = [self.constitution.draw(job.seed, job.stage, prompt.id, number) for prompt in prompts]
        shown = [self.shown(prompt.id) for prompt in prompts]
        requests = [
            critique_turns(draft, principle, examples)
            for draft, principle, examples in zip(drafts, principles, shown, strict=True)
        ]
        critiques = yield from self._sample("critic", requests, prompts, "critique", number)
        requests = [
            (*turns, Turn("assistant", critique.text), Turn("user", principle.revision))
            for turns, critique, principle in zip(requests, critiques, principles, strict=True)
        ]
        revisions = yield from self._sample("critic", requests, prompts, "revision", number)
        for draft, principle, examples, critique, revision in zip(
            drafts, principles, shown, critiques, revisions, strict=True
        ):
            record = {
                **_record(draft, principle, critique.text, revision.text, number),
                "examples": [example.id for example in examples],
                "policy": job.only("policy").fingerprint,
                **text_facts(job, "critic", critique, revision),
            }
            if revision.text:
                draft.kept.append(record)
                draft.answer = revision.text
            else:
                draft.set_aside.append({"reason": REFUSED if revision.refusal else EMPTY_REVISION, **record})
        return sum(text.tokens for text in (*critiques, *revisions))

    def shown(self, id: str) -> list[Conversation]:
        """The worked critiques that all questions about one prompt begin with, the same ones in every round."""
        count = len(self.demonstrations)
        seed = draw_seed(self.job.seed, self.job.stage, id, "demonstrations")
        places = range(min(self.spec.few_shot, count))
        return [self.demonstrations[permuted(place, count, seed=seed)] for place in places]

    def _sample(
        self, role: str, conversations: Sequence[Sequence[Turn]], prompts: Sequence[Prompt], purpose: str, number: int
    ) -> Generator[Sequence[Ask], list[Reply], list[Text]]:
        job = self.job
        replies = yield [
            sample_of(self.spec, role, turns, seed=draw_seed(job.seed, job.stage, prompt.id, purpose, number))
            for turns, prompt in zip(conversations, prompts, strict=True)
        ]
        return [reply for reply in replies if isinstance(reply, Text)]


def critique_turns(draft: Draft, principle: Principle, examples: Sequence[Conversation] = ()) -> tuple[Turn, ...]:
    """Return the turns that the critic reads before its critique: worked ones first, a system turn before them."""
    turns = draft.prompt.turns
    system = sum(turn.role == "system" for turn in turns[:1])
    before = (*turns[:system], *(turn for example in examples for turn in example.turns), *turns[system:])
    return (*before, Turn("assistant", draft.answer), Turn("user", principle.critique))


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
        "template": wording_fingerprint(principle.critique, principle.revision),
    }


def _summary(totals: Mapping[str, float]) -> dict[str, float]:
    """Return the reported figures of the batches so far."""
    return {
        "prompts": totals["prompts"],
        "empty_first_answers": totals["empty_first_answers"],
        "empty_revisions": totals["set_aside"] - totals["refused_revisions"],
        "refused_revisions": totals["refused_revisions"],
        "unchanged_revision_share": totals["unchanged_revisions"] / max(totals["records"], 1),
    }


def run(stage: StageDir) -> None:
    """Make the records of a critique stage."""
    job, spec = stage.job, stage.job.spec_as(CritiqueStage)
    examples = role_critiques(job, "demonstrations") if spec.few_shot else ()
    reviser = Reviser(job=job, spec=spec, constitution=role_constitution(job), demonstrations=examples)
    batches = prompt_batches(job, "prompts", size=spec.rollout_batch, limit=spec.num_prompts)
    with open_answerer(stage, ("policy", "critic")) as answerer:
        make_records(stage, batches, reviser.make, answerer, summarise=_summary)


if __name__ == "__main__":
    stage_main(run)
