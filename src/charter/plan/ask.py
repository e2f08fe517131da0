"""Questions without a file: the project that a question stands for, and what fits hardware, budget and deadline."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib import resources
from typing import Any

from charter.catalog import models as catalog_models
from charter.catalog.accelerators import CPU, get, others_called, parse_request
from charter.catalog.price_book import machines_of, offers
from charter.engines import capabilities
from charter.engines.common.capabilities import one_of
from charter.engines.hardware import engines_on
from charter.errors import InfeasibleError, UsageError
from charter.plan.plan import Plan
from charter.plan.what_if import MARKETS
from charter.spec import PROJECT_FILE
from charter.spec.layout import Adapter
from charter.spec.project import Resources
from charter.spec.stage import STAGE_KINDS
from charter.spec.stage_base import NATIVE
from charter.spec.suggest import METHODS, nearest
from charter.units import parse_usd, short

# -------- Projects for a question without a file: `charter plan sft Llama-3.1-8B --tokens 100M` stands for the text
# made here.
#
# The text is an ordinary charter.yaml; what was not said is filled in, and listed as assumed.

WORDS = {
    "pretrain": "pretrain",
    "sft": "sft",
    "finetune": "sft",
    "pm": "preference_model",
    "rm": "preference_model",
    "preference_model": "preference_model",
    "reward_model": "preference_model",
    "dpo": "dpo",
    "ppo": "ppo",
    "rlhf": "ppo",
    "grpo": "grpo",
    "rlvr": "grpo",
    "generate": "generate",
    "label": "label",
    "judge": "label",
    "cai": "cai",
    "rlaif": "cai",
}
"""The kind that a word on the command line means."""
SPOKEN = {kind: word for word, kind in reversed(WORDS.items())}
"""The word that people say for a kind."""
LORA_RANK = 16
"""Of the cheaper method: the rank that guides of adapters begin with."""
AMOUNT = {
    "pretrain": "tokens",
    "sft": "tokens",
    "preference_model": "pairs",
    "dpo": "pairs",
    "ppo": "prompts",
    "grpo": "prompts",
    "generate": "prompts",
    "label": "pairs",
}
"""What of a kind can be more or less."""
GROUP = 8
"""Answers to a prompt in `grpo`, the default of its templates."""
REPLY = 256
"""Tokens that a tool replies, the default of a stage."""
OPTION_OF = {
    "model": "MODEL",
    "tokens": "--tokens",
    "pairs": "--pairs",
    "prompts": "--prompts",
    "answers": "--answers",
    "seq_len": "--seq",
    "lora": "--lora",
    "turns": "--turns",
    "judge": "--judge",
    "judge_price": "--judge-price",
}
"""How the command line spells what a kind can be asked about; the rest goes with every kind."""


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """Description of a stage that has no file; None where nothing was said."""

    kind: str
    model: str | None = None
    tokens: int | None = None
    """In all rows."""
    pairs: int | None = None
    prompts: int | None = None
    answers: int | None = None
    """Mean tokens of an answer."""
    seq_len: int | None = None
    lora: int | None = None
    """Rank of adapters; all weights are trained without."""
    turns: int | None = None
    """Of an answer, with a tool's reply between two."""
    judge: str | None = None
    judge_price: str | None = None
    """Of a judge that is only an API, in usd per million tokens read and written, like `2.5,10`."""
    accelerators: str | None = None
    """Like `H100:8`; every machine of the price book without."""
    nodes: int | None = None
    """The most; one where accelerators are named."""
    price: str | None = None
    """Of one accelerator in an hour, on hardware of one's own."""
    market: str | None = None
    """A word of `MARKETS`; on demand where nothing is said."""
    budget_usd: float | None = None
    deadline: str | None = None


@dataclass(frozen=True, kw_only=True)
class KindFile:
    """The text of charter.yaml that an inquiry stands for, and what it assumes."""

    text: str
    assumed: tuple[str, ...]
    amount: tuple[str, int] | None = None
    """The option that says how much data there is, and the number; None where no option says it."""


class _Answers:
    """Values of an inquiry with those that were not given, which are noted as they are read."""

    def __init__(self, inquiry: Inquiry) -> None:
        self.inquiry = inquiry
        self.assumed: list[str] = []
        self.amount: tuple[str, int] | None = None

    def number(self, name: str, default: int, meaning: str) -> int:
        """Return a given number, or the default with a note."""
        given = getattr(self.inquiry, name)
        if given is not None and given < 1:
            raise UsageError(f"{OPTION_OF[name]} {given}: give 1 or more")
        if given is None:
            self.assumed.append(f"{OPTION_OF[name]} {short(default)}: {meaning}")
        number = default if given is None else int(given)
        if name == AMOUNT.get(self.inquiry.kind):
            self.amount = OPTION_OF[name], number
        return number

    def model(self, name: str, default: str) -> str:
        """Return the catalog's name of a given model, or of the default with a note."""
        given = getattr(self.inquiry, name) or default
        full = catalog_models.resolve(catalog_models.of_size(given)).name
        if getattr(self.inquiry, name) is None or given.upper() in catalog_models.SIZES:
            self.assumed.append(f"{OPTION_OF.get(name, name)} {given}: {full}")
        return full

    def judge(self, name: str) -> tuple[str, str]:
        """Return the name of the judge, and the lines that say where it is served: none for a catalog's model."""
        price, judge = self.inquiry.judge_price, getattr(self.inquiry, name)
        if price is None:
            try:
                return self.model(name, "70B"), ""
            except UsageError as error:
                api = "; of a model that is only an API, --judge-price IN,OUT says what a million tokens cost"
                raise UsageError(f"{error}{api}") from None
        if judge is None:
            raise UsageError(f"--judge-price {price}: {OPTION_OF[name]} names the judge, which has no weights here")
        try:
            read, written = (parse_usd(part) for part in price.split(","))
        except ValueError:
            raise UsageError(f"--judge-price {price}: give usd per million tokens, read and written: 2.5,10") from None
        self.assumed += [f"{judge} is only an API, at {API_ADDRESS}", "no limit on its requests or tokens a minute"]
        served = f"{API_ADDRESS}, api_key: env:JUDGE_API_KEY, usd_per_million_input_tokens: {read:g}"
        text = f"serving:\n  judge: {{endpoint: {served}, usd_per_million_output_tokens: {written:g}}}\n"
        return json.dumps(judge), text


API_ADDRESS = "https://api.example.com/v1"
"""Where a judge's address goes, since a plan needs none."""


def kind_of(word: str) -> str | None:
    """Return the kind of stage that a word means, or None.

    >>> kind_of("rlvr"), kind_of("Reward-Model"), kind_of("charter.yaml")
    ('grpo', 'preference_model', None)
    """
    return WORDS.get(word.lower().replace("-", "_"))


def takes(kind: str) -> tuple[str, ...]:
    """Return what a kind can be asked about, by the names of an inquiry.

    >>> takes("generate")
    ('model', 'prompts', 'answers')
    """
    return _WRITERS[kind][1]


RL = "rl"
"""Name of the stage of `ppo` and `grpo` in the file that a question stands for; of other kinds it is the kind."""


def stage_of_kind(kind: str) -> tuple[str, frozenset[str]] | None:
    """Return the name of the stage that a question plans, and its fields; None where there are several.

    >>> stage_of_kind("grpo")[0], "global_batch" in stage_of_kind("sft")[1], stage_of_kind("cai")
    ('rl', True, None)
    """
    cls = STAGE_KINDS.get("ppo" if kind == "grpo" else kind)
    if cls is None:
        return None
    return RL if kind in ("ppo", "grpo") else kind, frozenset(field.name for field in fields(cls))


def kind_file(inquiry: Inquiry) -> KindFile:
    """Return the charter.yaml that an inquiry stands for.

    >>> made = kind_file(Inquiry(kind="sft", model="Llama-3.1-8B", tokens=10**8, accelerators="A100:8"))
    >>> "init: base" in made.text, made.assumed[0]
    (True, '--seq 2048: tokens of a row, which conversations share')
    """
    write, taken = _WRITERS[inquiry.kind]
    spare = [
        OPTION_OF[field.name]
        for field in fields(inquiry)
        if field.name in OPTION_OF and field.name not in taken and getattr(inquiry, field.name) is not None
    ]
    if spare:
        says = ", ".join(OPTION_OF[name] for name in taken)
        verb = "does" if len(spare) == 1 else "do"
        raise UsageError(f"{', '.join(spare)} {verb} not apply to {SPOKEN[inquiry.kind]}, which takes {says}")
    answers = _Answers(inquiry)
    return KindFile(text=write(inquiry, answers), assumed=tuple(answers.assumed), amount=answers.amount)


def unknown_word(word: str, rest: str = "8B") -> UsageError:
    """Return the refusal of a first word that is neither a path nor a kind; `rest` is what stands after it."""
    kinds = ", ".join(SPOKEN[kind] for kind in dict.fromkeys(WORDS.values()))
    near = nearest(word, WORDS)
    if word.lower() in METHODS:
        rank = "" if "--lora" in rest.split() else f" --lora {LORA_RANK}"
        guess = f"it goes with a kind: charter plan {METHODS[word.lower()].format(rest=rest, rank=rank)}"
    elif (model := catalog_models.find(catalog_models.of_size(word))) is not None:
        guess = f"{model.name} is a model; what shall it do? charter plan sft {word}, or one of {kinds}"
    elif near is None and (model_name := nearest(word, (m.name.rpartition("/")[2] for m in catalog_models.catalog()))):
        guess = f"did you mean the model {model_name}? Then say what it shall do: charter plan sft {model_name}"
    else:
        guess = f"did you mean {near!r}?" if near else f"kinds: {kinds}"
    return UsageError(f"there is no file or directory {word}, and no kind of stage is called so; {guess}")


def _head(inquiry: Inquiry, model: str) -> str:
    plain = re.sub(r"[^a-z0-9.]+", "-", model.rpartition("/")[2].lower()).strip("-").replace(".", "-")
    return f"name: {inquiry.kind.replace('_', '-')}-{plain}\n"


def _resources(inquiry: Inquiry, given: _Answers) -> str:
    lines = ["resources:"]
    named = inquiry.accelerators
    if inquiry.price is not None and named is None:
        raise UsageError(f"--price {inquiry.price}: is of a machine of yours; say which, like --on H100:8")
    card = get(name) if named is not None and (name := parse_request(named)[0]) != CPU else None
    is_own = inquiry.price is not None or (card is not None and not offers(card.name))
    if is_own and inquiry.market is not None:
        raise UsageError(f"--market {inquiry.market}: a machine of yours is on no market; leave it out")
    if is_own:
        lines.append("  infra: on_prem")
    if inquiry.price is not None:
        lines.append(f"  price: {inquiry.price}")
    elif is_own:
        given.assumed.append(f"a machine of yours: no price list has {named}; --price says what it costs")
    else:
        lines.append(f"  use_spot: {MARKETS[inquiry.market or 'on_demand']}")
    machine, fixed = (named, None) if named is None or inquiry.nodes is not None else machines_of(named)
    lines.append(f"  accelerators: [{machine or 'any'}]")
    nodes = inquiry.nodes
    if named is None:
        most = "the price book" if nodes is not None else f"the price book, up to {Resources().max_nodes} at once"
        given.assumed.append(f"--on any: every machine of {most}")
    else:
        if card is not None and (others := others_called(said := named.partition(":")[0])):
            given.assumed.append(f"--on {said}: {card.name}, not {one_of(others)}")
        if fixed is not None:
            lines += [f"  num_nodes: {fixed}", f"  max_nodes: {max(fixed, Resources().max_nodes)}"]
            given.assumed.append(f"--on {named}: {fixed} machines of {machine}, since none has that many")
        elif nodes is None:
            nodes = 1
            given.assumed.append("--nodes 1: one machine")
        elif nodes > 1:
            given.assumed.append(f"--nodes {nodes}: at most; exactly {nodes} with --set resources.num_nodes={nodes}")
    if inquiry.market is None and not is_own and (named is None or card is not None):
        given.assumed.append("--market on_demand: spot is not looked at")
    if nodes is not None:
        lines.append(f"  max_nodes: {nodes}")
    if inquiry.budget_usd is not None:
        lines.append(f"budget: {{limit: {inquiry.budget_usd:g}}}")
    if inquiry.deadline is not None:
        lines.append(f"deadline: {inquiry.deadline}")
    return "\n".join(lines) + "\n"


def _engine_of(inquiry: Inquiry) -> str:
    """Return another engine where the native one does not run on the accelerators that are named."""
    if inquiry.accelerators is None or (name := parse_request(inquiry.accelerators)[0]) == CPU:
        return NATIVE
    engines = engines_on(inquiry.kind, get(name))
    return NATIVE if NATIVE in engines or not engines else engines[0]


def _engine(inquiry: Inquiry, given: _Answers) -> str:
    if (engine := _engine_of(inquiry)) == NATIVE:
        return ""
    given.assumed.append(f"engine {engine}: {NATIVE} does not run on {inquiry.accelerators}")
    return f"    engine: {engine}\n"


def _dtype(inquiry: Inquiry, given: _Answers) -> str:
    """Write the number format where the accelerators that are named lack the usual one."""
    if inquiry.accelerators is None or (name := parse_request(inquiry.accelerators)[0]) == CPU or get(name).has_bf16:
        return ""
    given.assumed.append(f"dtype fp16: {get(name).name} has no bf16")
    return "    dtype: fp16\n"


def _adapter(inquiry: Inquiry, model: str, given: _Answers) -> str:
    """Write the adapter of a rank below the model's width, from which on it is no smaller than the weights."""
    rank = inquiry.lora
    if rank is None:
        if "lora" in _WRITERS[inquiry.kind][1]:
            given.assumed.append(f"all weights trained, where --lora {LORA_RANK} trains adapters")
        return ""
    width = catalog_models.resolve(model).architecture.hidden_size
    if refusal := Adapter(rank=rank).too_large(width):
        raise UsageError(f"--lora {rank}: {refusal}")
    alpha = 2 * given.number("lora", rank, "")
    given.assumed.append(f"adapters on every linear matrix, with alpha {alpha}, over a base of 16 bits")
    return f"    adapter: {{rank: {rank}, alpha: {alpha}}}\n"


def _language(inquiry: Inquiry, given: _Answers) -> str:
    """Write pretraining or fine-tuning on a number of tokens."""
    model = given.model("model", "8B")
    is_sft = inquiry.kind == "sft"
    is_packed = is_sft and "packing" not in {item.field for item in capabilities(_engine_of(inquiry)).fixed}
    shared = ", which conversations share" if is_packed else ", one conversation each" if is_sft else ""
    seq_len = given.number("seq_len", 2048 if is_sft else 4096, f"tokens of a row{shared}")
    tokens = given.number("tokens", 10**8 if is_sft else 10**10, "of all conversations" if is_sft else "of all texts")
    mean = min(512, seq_len)
    batch = max(1, (1 << (17 if is_sft else 21)) // seq_len)
    given.assumed += [
        f"{'conversations' if is_sft else 'texts'} of {mean} tokens, read once",
        f"{batch} rows of {seq_len} in a batch",
    ]
    adapter = _adapter(inquiry, model, given)
    return (
        _head(inquiry, model)
        + f"models:\n  base: {{model: {model}, precision: bf16}}\n"
        + f"data:\n  texts: {{path: texts.jsonl, rows: {math.ceil(tokens / mean)}, mean_tokens: {mean}}}\n"
        + f"pipeline:\n  {inquiry.kind}:\n    kind: {inquiry.kind}\n    init: base\n    data: texts\n    epochs: 1\n"
        + f"    global_batch: {batch}\n    seq_len: {seq_len}\n{_engine(inquiry, given)}{_dtype(inquiry, given)}"
        + ("    packing: true\n" if is_packed else "")
        + adapter
        + _resources(inquiry, given)
    )


def _pairs(inquiry: Inquiry, given: _Answers) -> str:
    """Write training on pairs of answers: a preference model, or DPO."""
    model = given.model("model", "8B")
    pairs = given.number("pairs", 60_000, "of answers, one of them preferred")
    seq_len = given.number("seq_len", 1024, "the longest prompt with its answer")
    given.assumed += [f"prompt and answer of {seq_len // 3} tokens, read once", "128 pairs in a batch"]
    if inquiry.kind == "dpo":
        given.assumed.append("a frozen reference beside the model")
    adapter = _adapter(inquiry, model, given)
    return (
        _head(inquiry, model)
        + f"models:\n  base: {{model: {model}, precision: bf16}}\n"
        + f"data:\n  pairs: {{path: pairs.jsonl, rows: {pairs}, mean_tokens: {seq_len // 3}}}\n"
        + f"pipeline:\n  {inquiry.kind}:\n    kind: {inquiry.kind}\n    init: base\n    data: pairs\n    epochs: 1\n"
        + f"    global_batch: 128\n    seq_len: {seq_len}\n"
        + _dtype(inquiry, given)
        + adapter
        + _resources(inquiry, given)
    )


def _rl(inquiry: Inquiry, given: _Answers) -> str:
    """Write reinforcement learning: PPO with a reward model, or GRPO with a rule."""
    is_group = inquiry.kind == "grpo"
    model = given.model("model", "7B")
    prompts = given.number("prompts", 20_000, "each drawn once")
    mean = given.number("answers", 512, "mean tokens of an answer")
    rollout = min(1024 if is_group else 512, prompts * (GROUP if is_group else 1))
    rollout -= rollout % GROUP if is_group else 0
    episodes = math.ceil(prompts * (GROUP if is_group else 1) / rollout) * rollout
    minibatch = max(1, rollout // 4)
    given.assumed += [
        f"{GROUP} answers to each prompt" if is_group else "one answer to each prompt",
        f"answers of at most {2 * mean} tokens",
        "prompts of 256 tokens",
        f"{rollout} answers in a rollout, trained on once, {minibatch} in a step",
    ]
    adapter = _adapter(inquiry, model, given)
    models = f"models:\n  policy: {{model: {model}, precision: bf16}}\n"
    if is_group:
        method = (
            "    rewards: [{name: right, kind: function, call: 'charter:number'}]\n"
            f"    estimator: grpo\n    samples_per_prompt: {GROUP}\n    kl_coefficient: 0\n"
        )
        given.assumed.append("a rule as reward, so no reward model; no KL penalty, so no reference model")
    else:
        models += f"  reward: {{model: {model}, reward_model: true}}\n"
        method = "    reward: reward\n"
        given.assumed.append("a reward model and a value model of the policy's size, and a frozen reference")
    if inquiry.turns is not None and not is_group:
        raise UsageError("--turns: ask it of grpo, where a rule rewards what tools led to")
    if inquiry.turns is not None:
        turns = given.number("turns", inquiry.turns, "")
        method += (
            "    environment: {tools: {calc: 'charter:calculator'}, "
            f"max_turns: {turns}, max_tool_calls: {turns}, observation_tokens: {REPLY}, mean_tool_time: 1}}\n"
        )
        given.assumed.append(f"a tool's reply of {REPLY} tokens after 1 s between two turns, and all turns taken")
    return (
        _head(inquiry, model)
        + models
        + f"data:\n  prompts: {{path: prompts.jsonl, rows: {prompts}, mean_tokens: 256}}\n"
        + f"pipeline:\n  {RL}:\n    kind: ppo\n    policy: policy\n    prompts: prompts\n"
        + method
        + f"    episodes: {episodes}\n    rollout_batch: {rollout}\n    minibatch: {minibatch}\n"
        + f"    max_prompt_tokens: 512\n    max_new_tokens: {2 * mean}\n    mean_new_tokens: {mean}\n"
        + _dtype(inquiry, given)
        + adapter
        + _resources(inquiry, given)
    )


def _answering(inquiry: Inquiry, given: _Answers) -> str:
    """Write a stage that trains nothing: a model answers prompts, or a judge compares two answers to each."""
    is_label = inquiry.kind == "label"
    name = "judge" if is_label else "policy"
    model, serving = given.judge("model") if is_label else (given.model("model", "70B"), "")
    if is_label:
        pairs = given.number("pairs", 60_000, "of answers to compare")
        stage = "    judge: judge\n    candidates: rows\n"
        data = f"  rows: {{path: pairs.jsonl, rows: {pairs}, mean_tokens: 256}}\n"
        given.assumed += ["prompt and answer of 256 tokens", "both orders compared, without a chain of thought"]
    else:
        prompts = given.number("prompts", 20_000, "to answer")
        mean = given.number("answers", 512, "mean tokens of an answer")
        stage = (
            f"    policy: policy\n    prompts: rows\n    num_prompts: {prompts}\n"
            f"    max_prompt_tokens: 512\n    max_new_tokens: {2 * mean}\n    mean_new_tokens: {mean}\n"
        )
        data = f"  rows: {{path: prompts.jsonl, rows: {prompts}, mean_tokens: 256}}\n"
        given.assumed += ["one answer to each prompt", f"answers of at most {2 * mean} tokens", "prompts of 256 tokens"]
    return (
        _head(inquiry, model)
        + ("constitution: constitution.yaml\n" if is_label else "")
        + f"models:\n  {name}: {{model: {model}{'' if serving else ', precision: bf16'}}}\n"
        + serving
        + f"data:\n{data}pipeline:\n  {inquiry.kind}:\n    kind: {inquiry.kind}\n{stage}"
        + _resources(inquiry, given)
    )


def _constitutional(inquiry: Inquiry, given: _Answers) -> str:
    """Write the template `cai-8b` with other models and resources."""
    base, (judge, serving) = given.model("model", "8B"), given.judge("judge")
    text = (resources.files("charter.templates") / "cai-8b" / PROJECT_FILE).read_text(encoding="utf-8")
    body = text[text.index("models:") : text.index("# ---- where and how")]
    written = "meta-llama/Llama-3.1-70B-Instruct, precision: bf16" if serving else "meta-llama/Llama-3.1-70B-Instruct"
    body = body.replace("meta-llama/Llama-3.1-8B", base).replace(written, judge)
    given.assumed += [
        "stages, data and batches of the template cai-8b: 60,000 pairs labelled, PPO of 262,144 answers",
        "all weights trained",
    ]
    return _head(inquiry, base) + body + serving + _resources(inquiry, given)


_Writer = Callable[[Inquiry, _Answers], str]
_WRITERS: Mapping[str, tuple[_Writer, tuple[str, ...]]] = {
    "pretrain": (_language, ("model", "tokens", "seq_len")),
    "sft": (_language, ("model", "tokens", "seq_len", "lora")),
    "preference_model": (_pairs, ("model", "pairs", "seq_len", "lora")),
    "dpo": (_pairs, ("model", "pairs", "seq_len", "lora")),
    "ppo": (_rl, ("model", "prompts", "answers", "lora")),
    "grpo": (_rl, ("model", "prompts", "answers", "turns", "lora")),
    "generate": (_answering, ("model", "prompts", "answers")),
    "label": (_answering, ("model", "pairs", "judge_price")),
    "cai": (_constitutional, ("model", "judge", "judge_price")),
}
"""The writer of a kind, and what it can be asked about."""


# -------- The inverse of a plan: which models and methods fit some hardware, a budget and a deadline, and how much
# data.

JUDGES = ("70B", "32B", "8B")
"""Sizes of judges for `cai`, the largest first."""
LADDER = ("405B", "70B", "32B", "14B", "8B", "3B", "1B")
"""Sizes that are tried where no model is named, the largest first."""
MOST_DOUBLINGS = 12
"""Of the amount of data, when the most that a budget pays for is looked for: a factor of 4,096."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One model with one method, and what became of its plan."""

    inquiry: Inquiry
    size: str
    method: str
    plan: Plan | None = None
    why: str = ""
    """The reason where it fits nowhere."""

    @property
    def verdict(self) -> str:
        """Return `fits`, `over budget`, `late` or `does not fit`, at p50."""
        if self.plan is None:
            return "does not fit"
        usd, limit = self.plan.project_usd, self.plan.budget_usd
        if limit is not None and (usd is None or usd.p50 / 1e6 > limit):
            return "over budget" if usd is not None else "no price"
        deadline = self.plan.deadline_seconds
        return "late" if deadline is not None and self.plan.seconds.p50 > deadline else "fits"


def methods(inquiry: Inquiry) -> Iterator[tuple[str, Inquiry]]:
    """Yield the methods of a kind, the dearest first: all weights, then adapters; for `cai` smaller judges.

    >>> [name for name, _ in methods(Inquiry(kind="sft"))]
    ['all weights', 'LoRA 16']
    >>> [name for name, _ in methods(Inquiry(kind="cai", judge="8B"))]
    ['judge 8B']
    """
    if inquiry.kind == "cai":
        for judge in JUDGES if inquiry.judge is None else (inquiry.judge,):
            yield f"judge {judge}", replace(inquiry, judge=judge)
    elif inquiry.kind in ("generate", "label"):
        yield "answers", inquiry
    elif inquiry.lora is not None or inquiry.kind == "pretrain":
        yield "all weights" if inquiry.lora is None else f"LoRA {inquiry.lora}", inquiry
    else:
        yield "all weights", inquiry
        yield f"LoRA {LORA_RANK}", replace(inquiry, lora=LORA_RANK)


def rungs(inquiry: Inquiry, plan_of: Callable[[Inquiry], Plan]) -> Iterator[Rung]:
    """Yield every model, the largest first, with every method; one model where the inquiry names it."""
    for size in LADDER if inquiry.model is None else (inquiry.model,):
        for method, question in methods(replace(inquiry, model=size)):
            try:
                yield Rung(inquiry=question, size=size, method=method, plan=plan_of(question))
            except InfeasibleError as error:
                yield Rung(inquiry=question, size=size, method=method, why=str(error).splitlines()[0])


def with_amount(inquiry: Inquiry, number: int | None) -> Inquiry:
    """Return the inquiry about another amount of data.

    >>> with_amount(Inquiry(kind="dpo"), 5).pairs
    5
    """
    change: dict[str, Any] = {AMOUNT[inquiry.kind]: number}
    return replace(inquiry, **change)


def most_data(rung: Rung, plan_of: Callable[[Inquiry], Plan]) -> Rung | None:
    """Return the rung with the most data that budget and deadline still pay for; None without either, or if not more.

    The amount is doubled until a plan is over, then the last doubling is halved twice: within a quarter of the most.
    """
    name = AMOUNT.get(rung.inquiry.kind)
    if name is None or rung.plan is None or (rung.plan.budget_usd is None and rung.plan.deadline_seconds is None):
        return None
    amount = getattr(rung.inquiry, name)
    if amount is None:
        return None

    def at(number: int) -> Rung:
        scaled = with_amount(rung.inquiry, number)
        return replace(rung, inquiry=scaled, plan=plan_of(scaled))

    best, low, high = None, amount, amount
    for _ in range(MOST_DOUBLINGS):
        high = 2 * low
        if (tried := at(high)).verdict != "fits":
            break
        best, low = tried, high
    for _ in range(2):
        middle = (low + high) // 2
        if (tried := at(middle)).verdict == "fits":
            best, low = tried, middle
        else:
            high = middle
    return best
