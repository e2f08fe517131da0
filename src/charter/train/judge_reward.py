"""Direct RLAIF: the reward of an answer is what a judge would rate it, without a preference model in between.

Rated by the three aims, or by a rubric's criteria: the constitution's, a file's, those of the prompt's row.

Where another engine computes the stage, its reward function asks a service of Charter's process beside it: the same
questions, stored and paid as in a stage of Charter's own.
"""

import hmac
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job
from charter.data.dataset import Turn
from charter.errors import DataError, StageError
from charter.feedback.answering import open_answerer
from charter.feedback.asking import Ask, Invalid, Reply
from charter.feedback.comparing import (
    ROW_COLUMN,
    AnswerGroup,
    Rated,
    Rating,
    chosen_criteria,
    criteria_of,
    drawn_criteria,
    load_rubric,
    rating,
    rubric_rating,
)
from charter.feedback.constitution import Principle
from charter.feedback.inputs import role_constitution
from charter.feedback.records import Answerer, answered
from charter.inference.limited import Failed
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import CONSTITUTION, OF_THE_ROW, RUBRICS, Reward, Rubric
from charter.train.rewards.mixture import Answer, Score
from charter.train.setup import Setup


@dataclass(frozen=True)
class JudgeReward:
    """A judge, with its weights here or behind an endpoint, that rates the answers of a rollout."""

    setup: Setup
    answerer: Answerer
    role: str
    """Of the judge among the stage's inputs."""
    is_exact: bool
    """Whether the same answers are rated with the same bits again; stored answers of an endpoint are not relied on."""

    @staticmethod
    def open(setup: Setup, spec: PpoStage, stack: ExitStack) -> "dict[str, JudgeReward]":
        """The judges that the stage names, by their models; `stack` gives them back."""
        if not spec.judges:
            return {}
        served = setup.job.serving
        here = [name for name in spec.judges if name not in served]
        if here and setup.ranks.world_size > 1:
            raise DataError(
                f"the judge {here[0]!r} is loaded in one process, and this stage has {setup.ranks.world_size}\n"
                "  serve it, give the stage one accelerator, or train a preference model on the judge's labels"
            )
        answerer = stack.enter_context(open_answerer(setup.stage, [spec.judge_role]))
        return {
            name: JudgeReward(setup, answerer, spec.role_of(name), is_exact=name not in served) for name in spec.judges
        }

    def score(self, step: int, conversations: Sequence[tuple[Sequence[Turn], str]]) -> Tensor:
        """Rewards from -1 to 1; a rollout with an answer that has no rating cannot be learnt from."""
        ratings = self.ratings(step, conversations)
        reasons = Counter(item.reason for item in ratings if isinstance(item, Invalid))
        if reasons:
            why = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
            raise StageError(
                f"the judge gave no rating for {reasons.total()} of {len(ratings)} answers of rollout {step} ({why})\n"
                "  a judge that gives log-probabilities of its tokens is needed; rollouts before this one are kept"
            )
        return torch.tensor([item.reward for item in ratings if not isinstance(item, Invalid)])

    def ratings(self, name: object, conversations: Sequence[tuple[Sequence[Turn], str]]) -> Sequence[Rating | Invalid]:
        """The rating of each answer, or why it has none; draws hang on `name` and the answer's number."""
        items = [
            Rated(id=f"{name}/{number}", turns=tuple(turns), answer=answer)
            for number, (turns, answer) in enumerate(conversations)
        ]
        job = self.setup.job
        return answered(rating(items, seed=job.seed, stage=job.stage, role=self.role), self.answerer)

    def settled_micro_usd(self) -> int:
        """Known cost of this process's calls to this judge so far; 0 where its weights are here."""
        return self.answerer.settled_micro_usd(self.role)

    def marks(self, groups: Sequence[AnswerGroup], rubric: Rubric) -> Sequence[float | Invalid]:
        """The mark of each answer by a rubric, or why it has none."""
        job = self.setup.job
        return answered(rubric_rating(groups, rubric, seed=job.seed, stage=job.stage, role=self.role), self.answerer)


def judge_score(reward: Reward, judge: JudgeReward, *, samples: int) -> Score:
    """Scores of a judge of the list, group by group; an answer without a mark has failed."""
    job, rubric = judge.setup.job, reward.rubric

    def rated(answers: Sequence[Answer]) -> list[float | Failed | None]:
        conversations = [(answer.conversation, answer.text) for answer in answers]
        ratings = judge.ratings(answers[0].seed if answers else 0, conversations)
        return [Failed(item.reason) if isinstance(item, Invalid) else item.reward for item in ratings]

    if rubric is None:
        return rated
    criteria = () if rubric.criteria == OF_THE_ROW else chosen_criteria(_criteria(judge.setup, rubric), rubric)

    def marked(answers: Sequence[Answer]) -> list[float | Failed | None]:
        groups = [
            _group(answers[place : place + samples], reward.name, criteria, rubric, seed=job.seed)
            for place in range(0, len(answers), samples)
        ]
        marks = iter(judge.marks([group for group in groups if group.criteria], rubric))
        scores: list[float | Failed | None] = []
        for group in groups:
            drawn = [next(marks) if group.criteria else None for _ in group.answers]
            scores += [Failed(mark.reason) if isinstance(mark, Invalid) else mark for mark in drawn]
        return scores

    return marked


def _criteria(setup: Setup, rubric: Rubric) -> Sequence[Principle]:
    if rubric.criteria == CONSTITUTION:
        return role_constitution(setup.job).principles
    files = {item.name: item for item in setup.job.inputs.get(RUBRICS, ())}
    return load_rubric(files[f"{RUBRICS} {rubric.criteria}"].location())


def _group(
    answers: Sequence[Answer], name: str, criteria: Sequence[Principle], rubric: Rubric, *, seed: int
) -> AnswerGroup:
    """Answers to one prompt with their criteria; a row without criteria of its own has none."""
    first = answers[0]
    if rubric.criteria == OF_THE_ROW:
        own = first.row.get(ROW_COLUMN) or ()
        own = own if isinstance(own, list | tuple) else [own]
        criteria = chosen_criteria(criteria_of(own, origin=f"column {ROW_COLUMN}"), rubric) if own else ()
    drawn = drawn_criteria(criteria, rubric, draw_seed(seed, "rubric", name, first.seed))
    return AnswerGroup(
        id=f"{name}/{first.seed}",
        turns=first.turns,
        answers=tuple(answer.text for answer in answers),
        criteria=drawn,
    )


# -------- The same judges for a stage that another engine computes.


@dataclass(frozen=True)
class _Unconfirmed:
    """An answerer whose servers are looked at once for each rollout, not once for each answer."""

    answerer: Answerer

    @property
    def batches_at_once(self) -> int:
        """Number of batches that may be under way."""
        return self.answerer.batches_at_once

    def submit(self, asks: Sequence[Ask]) -> "Future[list[Reply]]":
        """The replies, in the order of the questions."""
        return self.answerer.submit(asks)

    def confirm(self) -> None:
        """The service does, after a rollout."""

    def settled_micro_usd(self, role: str) -> int:
        """Known cost of this process's calls to a role's model so far."""
        return self.answerer.settled_micro_usd(role)

    def close(self) -> None:
        """Whoever opened the answerer closes it."""


@dataclass
class Busy:
    """Time in which at least one question was under way.

    >>> busy = Busy()
    >>> busy.begin(1.0), busy.begin(2.0), busy.end(3.0), busy.end(5.0), busy.begin(7.0)
    (None, None, None, None, None)
    >>> busy.seconds_until(8.0)
    5.0
    """

    seconds: float = 0.0
    under_way: int = 0
    since: float = 0.0

    def begin(self, now: float) -> None:
        """One question more."""
        if not self.under_way:
            self.since = now
        self.under_way += 1

    def end(self, now: float) -> None:
        """One has its answer."""
        self.under_way -= 1
        if not self.under_way:
            self.seconds += now - self.since

    def seconds_until(self, now: float) -> float:
        """All of it so far."""
        return self.seconds + (now - self.since if self.under_way else 0.0)


@dataclass
class JudgeService:
    """Rates answers one at a time, as an engine's reward function sends them, from many threads.

    What is drawn hangs on the prompt's row, so a resumed engine that draws the same answer gets the stored rating. What
    ends a stage of Charter's own (a budget, a changed model, too many answers without a rating) ends this one: nothing
    is asked from then on, and `check` raises it.
    """

    job: Job
    scores: Mapping[str, Score]
    answerer: Answerer
    rollout: int
    """Answers after which the servers that were asked are looked at once more, and failures are counted anew."""
    most_failed: float
    """Answers of a rollout that may have no rating."""
    key: str
    judges: Mapping[str, JudgeReward]
    """The judge of each reward."""
    failure: Exception | None = None
    _lock: Lock = field(default_factory=Lock)
    _busy: dict[str, Busy] = field(default_factory=dict)
    _asked: int = 0
    _failed: int = 0

    def check(self) -> None:
        """Raise what has ended the service, if something has."""
        if self.failure is not None:
            raise self.failure

    def confirm(self) -> None:
        """Look once more at the servers that have answered: before what was learnt from them is published."""
        self.answerer.confirm()

    def rate(self, question: Mapping[str, Any]) -> float | Failed | None:
        """The rating of one answer; None where the row has no criteria."""
        self.check()
        turns, row = question["turns"], question["row"]
        answer = Answer(
            turns=tuple(Turn(turn["role"], turn["content"]) for turn in turns),
            text=question["answer"],
            row=row,
            tokens=0,
            ended=True,
            seed=draw_seed(self.job.seed, self.job.stage, "row", json.dumps([turns, row], sort_keys=True)),
        )
        name = question["reward"]
        try:
            with self._at_work(name):
                [rating] = self.scores[name]([answer])
            self._count(rating)
        except Exception as error:
            self.failure = self.failure or error
            raise
        return rating

    @contextmanager
    def _at_work(self, name: str) -> Iterator[None]:
        with self._lock:
            busy = self._busy.setdefault(name, Busy())
            busy.begin(time.monotonic())
        try:
            yield
        finally:
            with self._lock:
                busy.end(time.monotonic())

    def spent(self) -> dict[str, float]:
        """Seconds and usd of each reward so far; of rewards of one model, whose calls are one bill, no usd (NaN)."""
        with self._lock:
            seconds = {name: busy.seconds_until(time.monotonic()) for name, busy in self._busy.items()}
        rewards_by_role = Counter(judge.role for judge in self.judges.values())
        spent: dict[str, float] = {}
        for name, judge in self.judges.items():
            is_alone = rewards_by_role[judge.role] == 1
            spent[f"{name}/seconds"] = seconds.get(name, 0.0)
            spent[f"{name}/usd"] = judge.settled_micro_usd() / 1e6 if is_alone else math.nan
        return spent

    def _count(self, rating: float | Failed | None) -> None:
        """Count an answer; after a rollout of them look at the servers."""
        with self._lock:
            self._asked += 1
            self._failed += isinstance(rating, Failed)
            if isinstance(rating, Failed) and self._failed > self.most_failed:
                raise StageError(
                    f"the judge gave no rating for {self._failed} answers of a rollout ({rating.reason}), more than "
                    f"the engine and max_failed_share let pass, {self.most_failed:g}\n"
                    "  a judge that gives log-probabilities of its tokens is needed; checkpoints before this are kept"
                )
            is_over = self._asked >= self.rollout
            if is_over:
                self._asked = self._failed = 0
        if is_over:
            self.confirm()


POLL_SECONDS = 0.05
"""How soon the service hears that it is to end."""


class _JudgeServer(ThreadingHTTPServer):
    request_queue_size = 1024
    """Engines send the answers of a whole rollout at once."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: an engine that was ended reads no reply."""


@contextmanager
def serving_judges(
    setup: Setup, spec: PpoStage, key: str, *, host: str, drops_failed: bool
) -> Iterator[tuple[JudgeService, str]]:
    """A service that rates answers for the judges of a stage's list, and its address, until the block ends.

    `host`: where the engine's processes reach this node.
    `drops_failed`: the engine can leave an answer without a rating out; elsewhere the first one ends the stage.
    """
    with ExitStack() as stack:
        judges = JudgeReward.open(setup, spec, stack)
        answerer = next(iter(judges.values())).answerer
        quiet = {name: replace(judge, answerer=_Unconfirmed(answerer)) for name, judge in judges.items()}
        rewards = [item for item in spec.rewards if item.kind == "judge"]
        rollout = spec.rollout_batch * len(rewards)
        service = JudgeService(
            job=setup.job,
            scores={item.name: judge_score(item, quiet[str(item.model)], samples=1) for item in rewards},
            answerer=answerer,
            rollout=rollout,
            most_failed=spec.max_failed_share * rollout if drops_failed else 0,
            key=key,
            judges={item.name: judges[str(item.model)] for item in rewards},
        )
        server = _JudgeServer((host, 0), _handler(service))
        thread = Thread(target=server.serve_forever, args=(POLL_SECONDS,), name="charter-judges", daemon=True)
        thread.start()
        try:
            yield service, f"http://{host}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _handler(service: JudgeService) -> type[BaseHTTPRequestHandler]:
    """Answers a POST of {reward, answer, turns, row} with {rating}; what keeps one from it is said as plain text."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Rate the answer that was sent."""
            if not hmac.compare_digest(
                self.headers.get("Authorization", "").encode(), f"Bearer {service.key}".encode()
            ):
                self._say(HTTPStatus.UNAUTHORIZED, "the key of this stage's judges is needed")
                return
            try:
                question = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                if not isinstance(question, dict) or question.get("reward") not in service.scores:
                    raise ValueError(f"the judges of this stage give {', '.join(service.scores)}")
                rating = service.rate(question)
            except (ValueError, KeyError, TypeError) as error:
                self._say(HTTPStatus.BAD_REQUEST, f"{type(error).__name__}: {error}")
            except Exception as error:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            else:
                if isinstance(rating, Failed):
                    self._say(HTTPStatus.UNPROCESSABLE_ENTITY, rating.reason)
                else:
                    self._say(HTTPStatus.OK, json.dumps({"rating": rating}))

        def _say(self, status: HTTPStatus, text: str) -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            """Print nothing: the ledger has every call."""

    return Handler
