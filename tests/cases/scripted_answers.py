"""An answerer whose replies are a function of the question, for tests of what is asked and how it is read."""

from concurrent.futures import Future

from charter.feedback.asking import ChoiceReply, Choose, Text


class Scripted:
    """Answers at once; keeps every list of questions that it was given."""

    batches_at_once = 1

    def __init__(self, choose=None, write=None):
        self.lists = []
        self._choose = choose or (lambda ask: ChoiceReply(log_probabilities=(-0.1, -2.0), missing=(False, False)))
        self._write = write or (lambda ask: Text(text="Because.", tokens=3))

    def submit(self, asks):
        self.lists.append(list(asks))
        done = Future()
        done.set_result([self._choose(ask) if isinstance(ask, Choose) else self._write(ask) for ask in asks])
        return done

    @property
    def asks(self):
        return [ask for asks in self.lists for ask in asks]

    def confirm(self):
        """Nothing to look at."""

    def close(self):
        """Nothing to give back."""


class ScriptedPool:
    """Stands where an endpoint's pool stands: `reply` is a function of the request."""

    def __init__(self, reply):
        self.requests, self._reply = [], reply

    def submit(self, requests):
        self.requests += requests
        done = Future()
        done.set_result([self._reply(request) for request in requests])
        return done
