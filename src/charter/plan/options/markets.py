"""The markets on which an option can be bought."""

from dataclasses import replace

from charter.plan.hardware.place import Price
from charter.plan.options.option import Option
from charter.plan.options.question import Question
from charter.plan.options.risk import overhead


def markets(question: Question, option: Option) -> list[Option]:
    """The option at each market that `use_spot` allows, with the failures of its own place."""
    options = [] if question.use_spot is True else [_at(question, option, option.price, spot=False)]
    if question.use_spot and option.place.spot is not None:
        options.append(_at(question, option, option.place.spot, spot=True))
    return options


def _at(question: Question, option: Option, price: Price, *, spot: bool) -> Option:
    """The same job at a market: interruptible machines cost less, are billed longer and waited for.

    A failure of any node stops the stage, those of groups beside the main one included.
    """
    risk = overhead(
        option.overhead.useful_seconds,
        place=option.place,
        num_nodes=option.num_nodes + sum(group.num_nodes for group in option.beside),
        spot=spot,
        checkpoint_bytes=question.checkpoint_bytes,
        settings=question.risk,
        units=question.units,
    )
    return replace(option, price=price, overhead=risk)
