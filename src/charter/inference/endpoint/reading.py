"""Meaning of an exchange in the light of earlier ones: who answered, which replies and which names there were."""

from charter.errors import DataError
from charter.inference.endpoint.call import CallReply, CallRequest
from charter.inference.endpoint.identity import ModelIds, ServerSetting
from charter.inference.endpoint.lanes import Lane
from charter.inference.endpoint.parsing import message_in_error, usage_in
from charter.inference.endpoint.rules import Answered, GiveUp, RequestTarget, Step, TryAgain, step_after
from charter.inference.endpoint.transport import MAX_COMPLETION_TOKENS, MAX_TOKENS, Received, TransportFailure


class ExchangeReader:
    """Reads the exchanges of one pool."""

    def __init__(self, setting: ServerSetting) -> None:
        self.limit_name = MAX_TOKENS
        """What the servers call the limit of generated tokens, as far as is known."""
        self._setting = setting
        self._models = ModelIds()
        self._fixed: dict[str, str] = {}
        """Questions that are put again and again, by the ids of their replies."""

    def read_stored(self, request: CallRequest, reply: CallReply) -> None:
        """Take note of a stored answer; DataError when another model gave it."""
        self._models.check(request.model, reply.model, "the store of answers")

    def read(
        self, exchange: Received | TransportFailure, request: CallRequest, lane: Lane, *, may_repeat: bool = False
    ) -> Step:
        """Return the next step; an answer of another model, or an old one over again, is no answer.

        `may_repeat`: the question was put before in the same words, so that the same reply is expected.
        """
        key_reference = self._setting.serving.api_key
        step = step_after(
            exchange,
            request,
            RequestTarget(name=self._setting.name, endpoint=lane.endpoint, key_reference=key_reference),
        )
        if isinstance(exchange, TransportFailure):
            return step
        if isinstance(step, GiveUp) and exchange.status == 400 and MAX_COMPLETION_TOKENS.encode() in exchange.body:
            self.limit_name = MAX_COMPLETION_TOKENS
            return TryAgain(cause="spelling", detail=message_in_error(exchange.body), cost="refused")
        if not isinstance(step, Answered):
            return step
        is_repeat = lane.repeats(step.parsed.id, exchange.body)
        if may_repeat:
            # Some servers name a reply by its request: a fixed question gets the same one, and no other.
            is_repeat = is_repeat and self._fixed.get(step.parsed.id) != request.key
            self._fixed[step.parsed.id] = request.key
        if is_repeat:
            return TryAgain(cause="invalid", detail="an earlier reply over again", cost="unknown")
        try:
            self._models.check(request.model, step.parsed.reply.model, lane.endpoint)
        except DataError as error:
            return GiveUp(error=error, stops_all=True, usage=usage_in(step.parsed.reply))
        return step
