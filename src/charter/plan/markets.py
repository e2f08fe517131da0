"""The markets on which an option can be bought."""

from dataclasses import replace

from charter.plan.option import Option
from charter.plan.place import Price
from charter.plan.question import Question
from charter.plan.risk import overhead


def markets(question: Question, option: Option) -> list[Option]:
    """The option at each market that `use_spot` allows."""
    made = [] if question.use_spot is True else [option]
    if question.use_spot and option.place.spot is not None:
        made.append(on_spot(option, option.place.spot, question.checkpoint_bytes))
    return made


def on_spot(option: Option, price: Price, checkpoint_bytes: float) -> Option:
    """The same job on interruptible machines: a lower price, more hours billed, a longer wait."""
    risk = overhead(
        option.overhead.useful_seconds,
        place=option.place,
        num_nodes=option.num_nodes,
        spot=True,
        checkpoint_bytes=checkpoint_bytes,
    )
    return replace(option, price=price, overhead=risk)
