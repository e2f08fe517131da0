"""Suites of questions with answers that are given: multiple choice, the loss on chosen answers, lm-evaluation-harness.

The suite `lm_eval` runs local tasks of lm-evaluation-harness, for what is usually measured of language models:
knowledge, reasoning, mathematics, reading, code. What a task asks and how it is marked is the task's own file.
Nothing is downloaded: a task names local files (`dataset_path: json`, with `data_files` beside the task's file). A
task may bring functions of its own, so its directory is code, and to be trusted as such.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import stage_rows
from charter.data.dataset import Pair, Turn, read_questions
from charter.data.rows import LETTERS, ChoiceQuestion
from charter.errors import CharterError, DataError, MissingExtraError
from charter.evaluate import statistics
from charter.evaluate.bench import Bench
from charter.evaluate.figures import SHARE, Figure, figure_of, mean, proportion, ratio
from charter.evaluate.likelihood import Continuation, likelihoods
from charter.evaluate.statistics import Z_95, ConfidenceInterval, of_mean
from charter.feedback.records import in_batches
from charter.inference.generate import SamplingSettings, answer_texts, generate
from charter.inference.score import first_token_ids, next_token_log_probabilities
from charter.models.chat import encode_answer, encode_prompt
from charter.models.language_model import LanguageModel

INSTRUCTION = "Answer with the letter of the right choice."
OPENING = "("
"""How the answer begins; the letter comes next."""


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """One question, answered in every way."""

    letter: int
    letter_confidence: float
    """Probability of that letter among the letters shown."""
    answer: int
    """The choice with the highest probability."""
    answer_per_byte: int
    """The one with the highest probability per byte, which does not favour short choices."""


def multiple_choice(bench: Bench) -> list[Figure]:
    """Return the share of questions that the policy, and each model it is measured against, answers right."""
    questions, skipped = stage_rows(bench.job, "questions", read_questions)
    for line in skipped.lines():
        print(line, flush=True)
    if not questions:
        raise DataError(f"stage {bench.job.stage} needs `questions`; name a data set of them")
    figures = _baselines(questions)
    for role in ("policy", "against"):
        if bench.has(role):
            answered = answer_all(bench.model(role), questions, batch=bench.spec.rollout_batch)
            figures += _figures(role, questions, answered)
    return figures


def answer_all(model: LanguageModel, questions: Sequence[ChoiceQuestion], *, batch: int) -> list[AnsweredQuestion]:
    """Every question in every way."""
    letters = _letter_probabilities(model, questions, batch)
    limit = int(model.model.config.max_position_embeddings)
    rows = [_continuation(model, item, choice, limit) for item in questions for choice in item.choices]
    read = iter(likelihoods(model, rows, batch=batch))
    answered = []
    for item, probabilities in zip(questions, letters, strict=True):
        totals = [next(read).log_probability for _ in item.choices]
        per_byte = [value / len(choice.encode()) for value, choice in zip(totals, item.choices, strict=True)]
        letter = _best(probabilities)
        answered.append(
            AnsweredQuestion(
                letter=letter,
                letter_confidence=probabilities[letter],
                answer=_best(totals),
                answer_per_byte=_best(per_byte),
            )
        )
    return answered


def question_text(item: ChoiceQuestion) -> str:
    """The question with its choices as the model is shown them.

    >>> print(question_text(ChoiceQuestion("q", "Which is larger?", ("A mouse", "A cow"), 1)))
    Which is larger?
    (A) A mouse
    (B) A cow
    Answer with the letter of the right choice.
    """
    choices = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, item.choices, strict=False))
    return f"{item.question}\n{choices}\n{INSTRUCTION}"


@torch.no_grad()
def _letter_probabilities(
    model: LanguageModel, questions: Sequence[ChoiceQuestion], batch: int
) -> list[tuple[float, ...]]:
    """The probabilities of the letters shown, among them; questions of like length are read together."""
    most = max(len(item.choices) for item in questions)
    ids = first_token_ids(model.tokenizer, LETTERS[:most])
    opening: list[int] = model.tokenizer(OPENING, add_special_tokens=False)["input_ids"]
    limit = int(model.model.config.max_position_embeddings) - len(opening)
    prompts = [
        encode_prompt(model.tokenizer, (Turn("user", question_text(item)),), max_tokens=limit) + opening
        for item in questions
    ]
    by_prompt: dict[int, tuple[float, ...]] = {}
    for part in in_batches(sorted(range(len(prompts)), key=lambda index: len(prompts[index])), batch):
        rows = next_token_log_probabilities(model, [prompts[index] for index in part], ids)
        for index, row in zip(part, rows, strict=True):
            shown = row[: len(questions[index].choices)].double()
            by_prompt[index] = tuple(torch.softmax(shown, -1).tolist())
    return [by_prompt[index] for index in range(len(prompts))]


def _continuation(model: LanguageModel, item: ChoiceQuestion, choice: str, limit: int) -> Continuation:
    """The choice's own words, without the end of the turn: its fixed cost would favour long choices, per byte."""
    choice_ids: list[int] = model.tokenizer(choice, add_special_tokens=False)["input_ids"][: limit * 3 // 4]
    prompt_ids = encode_prompt(model.tokenizer, (Turn("user", item.question),), max_tokens=limit - len(choice_ids))
    return Continuation(tuple(prompt_ids), tuple(choice_ids))


def _figures(role: str, questions: Sequence[ChoiceQuestion], answered: Sequence[AnsweredQuestion]) -> list[Figure]:
    key, name = f"multiple_choice.{role}", role.title()
    pairs = list(zip(questions, answered, strict=True))
    letter = [float(reply.letter == item.answer) for item, reply in pairs]
    answer = [float(reply.answer == item.answer) for item, reply in pairs]
    per_byte = [float(reply.answer_per_byte == item.answer) for item, reply in pairs]
    first = [float(reply.letter == 0) for reply in answered]
    figures = [
        proportion(f"{key}.letter", f"{name} right, by letter", letter, note="all choices shown, next token read"),
        proportion(f"{key}.answer", f"{name} right, by answer", answer, note="probability of the choice's own words"),
        proportion(f"{key}.answer_per_byte", f"{name} right, by answer per byte", per_byte),
        proportion(f"{key}.first_option", f"{name} chooses (A)", first, note="by letter"),
        _calibration_error(key, name, answered, letter),
    ]
    groups = sorted({item.group for item in questions})
    for group in groups if len(groups) > 1 else ():
        own = [value for (item, _), value in zip(pairs, letter, strict=True) if item.group == group]
        label = f"{name} right, by letter: {group or 'the rest'}"
        figures.append(proportion(f"{key}.letter.{group or 'other'}", label, own))
    return figures


def _calibration_error(key: str, name: str, answered: Sequence[AnsweredQuestion], right: Sequence[float]) -> Figure:
    """Return the calibration error: the distance between the letters' probabilities and the share that is right."""
    confidences = [reply.letter_confidence for reply in answered]
    terms = statistics.gap_terms(confidences, right, lowest=0.0)
    gap = of_mean(terms)
    chance = statistics.chance_gap(confidences, lowest=0.0)
    return figure_of(
        f"{key}.ece",
        f"Calibration error of the {name.lower()}, by letter",
        sum(terms) / len(terms),
        ConfidenceInterval(low=max(gap.low, 0.0), high=gap.high),
        len(terms),
        "probability",
        f"normal, s/sqrt(n), {statistics.BINS} bins with their signs held",
        f"a calibrated model would come out near {chance:.3f} on so few questions",
    )


def _baselines(questions: Sequence[ChoiceQuestion]) -> list[Figure]:
    """Return the baselines: the share that is right without reading the questions."""
    chance = [1 / len(item.choices) for item in questions]
    longest = [float(_best([len(choice) for choice in item.choices]) == item.answer) for item in questions]
    return [
        mean("multiple_choice.chance", "Baseline: a choice at random", chance, unit="share"),
        proportion("multiple_choice.longest", "Baseline: the longest choice", longest),
    ]


def _best(values: Sequence[float]) -> int:
    """The place of the largest; the first of equals."""
    return max(range(len(values)), key=lambda index: values[index])


@dataclass(frozen=True, kw_only=True)
class AnswerLoss:
    """Loss of a model on one answer."""

    nats: float
    tokens: int
    """End token included."""
    text_bytes: int
    cut: bool
    """Whether prompt and answer were longer than the model's context."""


def perplexity(bench: Bench) -> list[Figure]:
    """Loss of the policy, and of what it is measured against, on the held-out answers humans chose."""
    figures = []
    for role, name in (("policy", "the policy"), ("against", "the model before")):
        if not bench.has(role):
            continue
        losses = answer_losses(bench.model(role), bench.pairs, batch=bench.spec.rollout_batch)
        cut = sum(loss.cut for loss in losses)
        note = "chosen answers of held-out pairs, given their prompts; end token counted"
        note += f"; {cut} cut to the model's context" if cut else ""
        key, label = f"perplexity.{role}", f"Held-out loss of {name}"
        nats, tokens = [loss.nats for loss in losses], [float(loss.tokens) for loss in losses]
        figures.append(ratio(f"{key}.nats_per_token", label, nats, tokens, unit="nats/token", note=note))
        bits, sizes = [value / math.log(2) for value in nats], [float(loss.text_bytes) for loss in losses]
        figures.append(ratio(f"{key}.bits_per_byte", label, bits, sizes, unit="bits/byte", note=note))
    return figures


def answer_losses(model: LanguageModel, pairs: Sequence[Pair], *, batch: int) -> list[AnswerLoss]:
    """The loss on each chosen answer, given its prompt."""
    limit = int(model.model.config.max_position_embeddings)
    encoded = [_encode(model, pair, limit) for pair in pairs]
    read = likelihoods(model, [row for row, _ in encoded], batch=batch)
    return [
        _loss(model, -likelihood.log_probability, row.asked, cut)
        for likelihood, (row, cut) in zip(read, encoded, strict=True)
    ]


def _encode(model: LanguageModel, pair: Pair, limit: int) -> tuple[Continuation, bool]:
    """The ids of prompt and answer, and whether anything was cut.

    The answer keeps at most 3/4 of the context; the prompt is cut at the left to what is left.
    """
    answer_ids = encode_answer(model.tokenizer, pair.prompt, pair.chosen)
    prompt = encode_prompt(model.tokenizer, pair.prompt)
    answer = answer_ids[: limit * 3 // 4]
    prompt_end = prompt[-(limit - len(answer)) :]
    return Continuation(tuple(prompt_end), tuple(answer)), len(prompt) + len(answer_ids) > limit


def _loss(model: LanguageModel, nats: float, answer: Sequence[int], cut: bool) -> AnswerLoss:
    text = str(model.tokenizer.decode(answer, skip_special_tokens=True))
    return AnswerLoss(nats=nats, tokens=len(answer), text_bytes=len(text.encode()), cut=cut)


DEFAULT_NEW_TOKENS = 256
"""Where a task does not say: the harness's own default."""
_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call the longest answer."""
STOP_TAIL_TOKENS = 32
"""Last tokens in which a stop sequence is looked for while sampling; longer ones are found afterwards."""


def charter_lm(model: LanguageModel, *, batch: int, seed: int) -> Any:
    """A model as the harness takes one: what is below, on top of the harness's own base class."""
    base = import_module("lm_eval.api.model").TemplateLM
    return type("CharterLM", (HarnessModel, base), {})(model, batch=batch, seed=seed)


class HarnessModel:
    """Language model of the harness; tokens are read as Hugging Face models read them."""

    def __init__(self, model: LanguageModel, *, batch: int, seed: int) -> None:
        super().__init__()
        self.language_model, self.batch, self.seed = model, batch, seed
        self.tokenizer = model.tokenizer
        self.max_length = int(model.model.config.max_position_embeddings)

    @property
    def eot_token_id(self) -> int:
        """The end-of-turn token."""
        return self.language_model.end_id

    @property
    def prefix_token_id(self) -> int:
        """Return the token before a text that has nothing before it."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        """For the harness's caches, which are not used."""
        return "charter"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """The ids of a text, with the tokenizer's own beginning unless it is there already."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None and begin and string.startswith(begin):
            add_special_tokens = False
        how = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        ids: list[int] = self.tokenizer.encode(string, **how)
        return ids

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Turns as text, for tasks that are asked as chats."""
        text: str = self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return text

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, Sequence[int], Sequence[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        rows = [self._cut(context, continuation) for _, context, continuation in requests]
        read = likelihoods(self.language_model, rows, batch=self.batch)
        return [(item.log_probability, item.is_greedy) for item in read]

    def _cut(self, given: Sequence[int], continuation: Sequence[int]) -> Continuation:
        """The last `max_length` + 1 tokens, of which the model reads all but the last."""
        if len(continuation) > self.max_length:
            raise DataError(
                f"a continuation of {len(continuation)} tokens, where the model takes {self.max_length}; "
                "shorten the task"
            )
        room = self.max_length + 1 - len(continuation)
        return Continuation(tuple(given[-room:]), tuple(continuation))

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, each token once, with as much before it as the model takes."""
        totals, harness = [], import_module("lm_eval.utils")
        for request in requests:
            windows = harness.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            rows = [self._cut(*harness.make_disjoint_window(window)) for window in windows]
            read = likelihoods(self.language_model, rows, batch=self.batch)
            totals.append(sum(item.log_probability for item in read))
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers cut at the first stop sequence; the draws of an answer hang on its question alone."""
        by_request: dict[int, str] = {}
        by_settings: dict[tuple[SamplingSettings, tuple[str, ...]], list[int]] = {}
        for index, request in enumerate(requests):
            by_settings.setdefault(self._settings(request.args[1]), []).append(index)
        for (settings, stops), indexes in by_settings.items():
            for part in in_batches(indexes, self.batch):
                texts = self._generate([requests[index].args[0] for index in part], settings, stops)
                by_request |= zip(part, texts, strict=True)
        return [by_request[index] for index in range(len(requests))]

    def _settings(self, options: Mapping[str, Any]) -> tuple[SamplingSettings, tuple[str, ...]]:
        length = next((int(options[name]) for name in _LENGTH_NAMES if name in options), DEFAULT_NEW_TOKENS)
        stops = options.get("until") or ()
        settings = SamplingSettings(
            max_new_tokens=length,
            temperature=float(options.get("temperature") or 0.0) if options.get("do_sample") else 0.0,
            top_p=float(options.get("top_p", 1.0)),
        )
        return settings, (stops,) if isinstance(stops, str) else tuple(stops)

    def _generate(self, contexts: Sequence[str], settings: SamplingSettings, stops: tuple[str, ...]) -> list[str]:
        room = self.max_length - settings.max_new_tokens
        if room < 1:
            raise DataError(
                f"a task asks for {settings.max_new_tokens} new tokens, where the model takes {self.max_length} in all"
            )
        prompts = [self.tok_encode(context)[-room:] for context in contexts]
        seeds = [draw_seed(self.seed, context) for context in contexts]
        watch = _Stops(self.tokenizer, stops, len(prompts)) if any(stops) else None
        answers = generate(self.language_model, prompts, seeds=seeds, settings=settings, watch=watch)
        return [cut_at(text, stops) for text in answer_texts(self.language_model, answers)]


class _Stops:
    """Ends an answer in which a stop sequence has come up."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], rows: int) -> None:
        self._tokenizer, self._stops = tokenizer, [stop for stop in stops if stop]
        self._tails: list[list[int]] = [[] for _ in range(rows)]

    def __call__(self, row_L: torch.Tensor, logits_LV: torch.Tensor, token_L: torch.Tensor) -> torch.Tensor:
        ends = []
        for row, token in zip(row_L.tolist(), token_L.tolist(), strict=True):
            tail = self._tails[row] = [*self._tails[row][1 - STOP_TAIL_TOKENS :], token]
            text = self._tokenizer.decode(tail, skip_special_tokens=True)
            ends.append(any(stop in text for stop in self._stops))
        return torch.tensor(ends, device=row_L.device)


def cut_at(text: str, stops: Sequence[str]) -> str:
    """A text up to the first stop sequence.

    >>> cut_at("4. Q: and", ("Q:", "."))
    '4'
    """
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


PACKAGE = "lm_eval"
PIP_COMMAND = "pip install lm-eval"
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
"""Read by the `datasets` package when it is imported, which happens here and nowhere before."""
ROLES = ("policy", "against")


def check_library() -> None:
    """Raise where the harness is not installed."""
    if find_spec(PACKAGE) is None:
        raise MissingExtraError(f"the suite lm_eval needs lm-evaluation-harness: {PIP_COMMAND}")


def lm_eval(bench: Bench) -> list[Figure]:
    """Every metric of every task, for the policy and what it is measured against."""
    check_library()
    paths = [item.location() for item in bench.job.inputs.get("lm_eval_tasks", ())]
    figures = []
    for role in ROLES:
        if bench.has(role):
            for path in paths:
                figures += _task_figures(role, _evaluated(bench, role, path))
    if not figures:
        raise DataError(f"stage {bench.job.stage}: the tasks of {', '.join(map(str, paths))} gave no metric")
    return figures


def _evaluated(bench: Bench, role: str, path: Path) -> Mapping[str, Any]:
    """Evaluate the tasks of one file or directory with the harness; relative paths in them start there."""
    directory = path if path.is_dir() else path.parent
    with _offline(), contextlib.chdir(directory):
        tasks = import_module("lm_eval.tasks")
        model = charter_lm(bench.model(role), batch=bench.spec.rollout_batch, seed=bench.seed("lm_eval"))
        try:
            manager = tasks.TaskManager(include_path=str(directory), include_defaults=False)
            results: Mapping[str, Any] = import_module("lm_eval").simple_evaluate(
                model=model,
                tasks=_names(manager, path),
                task_manager=manager,
                bootstrap_iters=0,
                random_seed=bench.seed("lm_eval", "random") % 2**32,
                numpy_random_seed=bench.seed("lm_eval", "numpy") % 2**32,
                torch_random_seed=bench.seed("lm_eval", "torch") % 2**32,
                fewshot_random_seed=bench.seed("lm_eval", "few_shot") % 2**32,
            )
        except CharterError:
            raise
        except Exception as error:  # a task is a foreign program: whatever it raises is a fault of its files
            raise DataError(
                f"{path}: lm-evaluation-harness cannot run these tasks: {type(error).__name__}: {error}\n"
                "  tasks must be local: `dataset_path: json` and `data_files` beside the task's file"
            ) from error
    return results


def _names(manager: Any, path: Path) -> list[Any]:
    """The tasks of a file, or all of a directory, in alphabetical order."""
    if path.is_file():
        return [str(path)]
    names = sorted(manager.all_subtasks)
    if not names:
        raise DataError(f"{path} holds no task of lm-evaluation-harness (YAML files with `task:`)")
    return names


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in OFFLINE}
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _task_figures(role: str, results: Mapping[str, Any]) -> list[Figure]:
    figures = []
    for task, metrics in sorted(results["results"].items()):
        samples = results.get("samples", {}).get(task, ())
        for name, value in sorted(metrics.items()):
            metric, comma, filter_name = name.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                rows = [row.get(metric) for row in samples if row.get("filter", filter_name) == filter_name]
                error = metrics.get(f"{metric}_stderr,{filter_name}")
                suffix = "" if filter_name == "none" else f".{filter_name}"
                key, label = f"lm_eval.{role}.{task}.{metric}{suffix}", f"{task}: {metric} of the {role}{suffix}"
                figures += figure_of_metric(key, label, float(value), rows, error)
    return figures


def figure_of_metric(key: str, label: str, value: float, rows: Sequence[Any], error: Any) -> list[Figure]:
    """A metric with an interval from its rows where they are numbers whose mean it is, else from its standard error.

    One that is neither, or has one row only, has no interval and is left out with a line in the log.
    """
    numbers = [float(row) for row in rows if isinstance(row, bool | int | float) and math.isfinite(row)]
    is_mean = len(numbers) == len(rows) > 1 and math.isclose(sum(numbers) / len(numbers), value, abs_tol=1e-9)
    if is_mean and set(numbers) <= {0.0, 1.0}:
        return [proportion(key, label, numbers)]
    if is_mean:
        return [mean(key, label, numbers, unit="")]
    if isinstance(error, int | float) and math.isfinite(error) and math.isfinite(value) and len(rows) > 1:
        half, method = Z_95 * float(error), "normal, the harness's standard error"
        unit = SHARE if value - half >= 0 and value + half <= 1 else ""
        return [
            figure_of(
                key, label, value, ConfidenceInterval(low=value - half, high=value + half), len(rows), unit, method
            )
        ]
    print(f"{key}: {value} on {len(rows)} rows has no interval and is left out", flush=True)
    return []
