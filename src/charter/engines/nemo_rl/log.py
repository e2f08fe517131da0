"""Steps as NeMo RL prints them.

Read in NeMo RL 0.6.0 (7ea279a): nemo_rl/algorithms/{sft,rm,dpo,grpo}.py. A step begins with
`===== Step 3/10 =====`, its figures follow under `Training Results:` (`  • Loss: 1.2345`), and
`  • Total step time: 12.34s` comes when it has ended.
"""

import re
from collections.abc import Iterable, Iterator

from charter.engines.common.logged import LoggedStep, LogReader

NAMES = {
    "Loss": "loss",
    "Avg Reward": "reward",
    "Generation KL Error": "generation_kl_error",
    "Mean Generation Length": "mean_new_tokens",
    "rewards_chosen_mean": "chosen_reward",
    "rewards_rejected_mean": "rejected_reward",
}
"""Others keep their own names; of DPO and the reward model they are those of its own metrics (`loss`, `accuracy`)."""
_STEP = re.compile(r"={5,} Step (\d+)/\d+ ={5,}")
_FIGURE = re.compile(r"^\s*• ([^:]+): (\S+)$")
_END = re.compile(r"^\s*• Total step time: ([\d.]+)s")
_RESULTS = "Training Results:"


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps that have ended, in what the process has printed."""
    step, values, listens = 0, dict[str, float](), False
    for line in lines:
        if begun := _STEP.search(line):
            step, values, listens = int(begun[1]), {}, False
        elif _RESULTS in line:
            listens = step > 0
        elif listens and (ended := _END.match(line)):
            yield LoggedStep(step=step, metrics=values, seconds=float(ended[1]))
            step, values, listens = 0, {}, False
        elif listens and (figure := _FIGURE.match(line)):
            values |= _value(figure[1], figure[2])


def _value(name: str, text: str) -> dict[str, float]:
    try:
        return {NAMES.get(name, name): float(text)}
    except ValueError:
        return {}


LOG = LogReader(console=console_steps)
