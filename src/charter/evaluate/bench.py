"""Shared inputs of the suites of one eval stage: models, held-out data, sampled answers; each made on first use."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import torch

from charter.artifacts.draws import draw_seed
from charter.artifacts.durable import write_file
from charter.artifacts.job import Job
from charter.artifacts.sample_prompts import SAMPLES_FILE
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Pair, Prompt, Turn
from charter.errors import DataError
from charter.evaluate import statistics
from charter.evaluate.judging import Judging
from charter.evaluate.likelihood import RoleAnswers, answer_prompts, divergences, play_prompts
from charter.evaluate.statistics import BagOfWords
from charter.feedback.constitution import Constitution
from charter.feedback.inputs import load_role, load_scorer, role_constitution, role_pairs, role_prompts
from charter.inference.score import score_answers
from charter.inference.turns import TURNS_DIRECTORY, Tools
from charter.models.language_model import LanguageModel
from charter.models.preference import PreferenceModel
from charter.models.runtime import configure
from charter.spec.rewards import ENVIRONMENT_SOURCES
from charter.spec.stage import EvalStage

REWARD_ROLES = ("reward", "also_rewards", "control_reward")
PROMPTS = "prompts"
SAMPLES = 50
"""Prompts whose answers are left for people to read."""


class Bench:
    """The models and data of an eval stage."""

    def __init__(self, stage: StageDir) -> None:
        spec = stage.job.spec_as(EvalStage)
        self.spec: EvalStage = spec
        self.job: Job = stage.job
        self.device = configure(stage.job.frozen)
        self.judging = Judging(stage, lambda: self.constitution)
        self._models: dict[str, LanguageModel] = {}
        self._prompts: dict[str, tuple[Prompt, ...]] = {}
        self._answers: dict[tuple[str, str], RoleAnswers] = {}
        self._samples_path = stage.path / SAMPLES_FILE
        self._stack = ExitStack()

    def close(self) -> None:
        """Give back what judges behind endpoints hold, and end the processes of tools."""
        self.judging.close()
        self._stack.close()

    def seed(self, *parts: str | int) -> int:
        """The seed of one purpose in this stage."""
        return draw_seed(self.job.seed, self.job.stage, *parts)

    def has(self, role: str) -> bool:
        """Return True if the stage names something for a role."""
        return bool(self.job.inputs.get(role))

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Held-out human preference pairs."""
        return role_pairs(self.job, "pairs")

    @cached_property
    def independent_pairs(self) -> tuple[Pair, ...]:
        """Human pairs that no other stage used; a conversation that is also held out is refused."""
        pairs = role_pairs(self.job, "independent_pairs")
        held_out = {pair.prompt for pair in self.pairs} if self.has("pairs") else set()
        if shared := [pair.id for pair in pairs if pair.prompt in held_out]:
            raise DataError(
                f"stage {self.job.stage}: {len(shared)} of {len(pairs)} independent_pairs share their conversation "
                f"with `pairs` (the first: {shared[0]}); the check would be tested on what it learnt from"
            )
        return pairs

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Held-out prompts."""
        return self.prompts_of(PROMPTS)

    def prompts_of(self, data: str) -> tuple[Prompt, ...]:
        """The prompts of a data role."""
        if data not in self._prompts:
            self._prompts[data] = role_prompts(self.job, data, limit=self.spec.num_prompts)
        return self._prompts[data]

    @cached_property
    def constitution(self) -> Constitution:
        """The project's constitution."""
        return role_constitution(self.job)

    @cached_property
    def proxy(self) -> BagOfWords:
        """The independent check: a bag of words trained on the independent pairs."""
        return statistics.train([(pair.chosen, pair.rejected) for pair in self.independent_pairs])

    def model(self, role: str) -> LanguageModel:
        """The language model of a role."""
        if role not in self._models:
            self._models[role] = load_role(self.job, role, self.device)
        return self._models[role]

    @cached_property
    def scorers(self) -> dict[str, PreferenceModel]:
        """The preference models by name, the reward first."""
        items = [item for role in REWARD_ROLES for item in self.job.inputs.get(role, ())]
        return {item.name: load_scorer(item, self.device) for item in items}

    @cached_property
    def tools(self) -> Tools:
        """The tools and the environment of the stage, in their processes."""
        assert self.spec.environment is not None
        sources = [(item.name, item.location()) for item in self.job.inputs.get(ENVIRONMENT_SOURCES, ())]
        return Tools.open(self.spec.environment, sources, self._stack)

    def answers(self, role: str, data: str = PROMPTS) -> RoleAnswers:
        """One answer per prompt of a data role; the draws of a prompt are the same for every model."""
        if (role, data) not in self._answers:
            self._answers[role, data] = self.answers_of(self.model(role), role, data)
            if data == PROMPTS:
                self._write_samples()
        return self._answers[role, data]

    def _write_samples(self) -> None:
        """Put the first answers of every role beside the outputs, for people to read; no hash covers them."""
        roles = {role: answers.texts for (role, data), answers in self._answers.items() if data == PROMPTS}
        earlier = _answers_in(self._samples_path)
        lines = [
            json.dumps(
                {
                    "id": prompt.id,
                    "prompt": [{"role": turn.role, "content": turn.content} for turn in prompt.turns],
                    "answers": {**earlier.get(prompt.id, {}), **{role: texts[row] for role, texts in roles.items()}},
                },
                ensure_ascii=False,
            )
            for row, prompt in enumerate(self.prompts[:SAMPLES])
        ]
        write_file(self._samples_path, "".join(f"{line}\n" for line in lines))

    def answers_of(self, model: LanguageModel, role: str, data: str = PROMPTS) -> RoleAnswers:
        """The answers of a model that no role names, with the draws that every model gets."""
        prompts = self.prompts_of(data)
        purpose = ("answer",) if data == PROMPTS else ("answer", data)
        seeds = [self.seed(*purpose, prompt.id) for prompt in prompts]
        if self.spec.environment is not None:
            directory = self._samples_path.parent / TURNS_DIRECTORY
            return play_prompts(
                model, prompts, seeds=seeds, spec=self.spec, role=role, tools=self.tools, directory=directory
            )
        return answer_prompts(model, prompts, seeds=seeds, spec=self.spec, role=role)

    def rewards(self, role: str, *, scorer_role: str = "reward") -> list[float]:
        """A preference model's score of a role's answers, in deviations of that model's training pairs."""
        return self.rewards_of(self.answers(role), scorer_role=scorer_role)

    def rewards_of(self, answers: RoleAnswers, *, scorer_role: str = "reward") -> list[float]:
        """A preference model's score of answers to the held-out prompts."""
        answered = zip(self.prompts, answers.texts, strict=True)
        scorer = self.scorers[self.job.only(scorer_role).name]
        return _numbers(score_answers(scorer, [(prompt.turns, text) for prompt, text in answered]))

    def divergences(self, role: str, reference: str) -> list[float]:
        """KL(role | reference) over each of a role's own answers, in nats per answer."""
        return divergences(self.model(role), self.model(reference), self.answers(role), self.spec)

    def margins(self, scorer: PreferenceModel, pairs: Sequence[tuple[Sequence[Turn], str, str]]) -> list[float]:
        """The score of the better answer less that of the other one, in deviations."""
        conversations = [(turns, answer) for turns, better, worse in pairs for answer in (better, worse)]
        scores = _numbers(score_answers(scorer, conversations))
        return [better - worse for better, worse in zip(scores[::2], scores[1::2], strict=True)]

    def ranked(self, scorer: PreferenceModel, pairs: Sequence[tuple[Sequence[Turn], str, str]]) -> list[float]:
        """1 where a preference model scores the better answer higher, 1/2 for a tie."""
        return [statistics.win_of(margin, 0.0) for margin in self.margins(scorer, pairs)]


def _answers_in(path: Path) -> Mapping[str, Mapping[str, str]]:
    """The answers by prompt that an attempt before this one wrote: those of suites that are not run again."""
    if not path.exists():
        return {}
    # Not splitlines: an answer may hold U+2028, which ends no line of JSON.
    rows = map(json.loads, path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    return {str(row["id"]): row["answers"] for row in rows}


def _numbers(values: torch.Tensor) -> list[float]:
    numbers: list[float] = values.double().tolist()
    return numbers
