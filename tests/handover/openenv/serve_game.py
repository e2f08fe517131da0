"""A guessing game on openenv-core's own server: the argument is the number of sessions; prints its port."""

import socket
import sys

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    guess: int


class Hint(Observation):
    text: str = ""


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State(episode_id="x", step_count=0)

    def reset(self, seed=None, episode_id=None, number=7, **kwargs):
        self.number, self._state = number, State(episode_id=episode_id, step_count=0)
        return Hint(text=f"guess up to 9, seed {seed > 0}", done=False, reward=None)

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        right = action.guess == self.number
        hint = "right" if right else "higher" if action.guess < self.number else "lower"
        return Hint(text=f"{hint}, try {self._state.step_count}", done=right, reward=float(right))

    @property
    def state(self):
        return self._state


listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
application = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=int(sys.argv[1]))
uvicorn.Server(uvicorn.Config(application, log_level="warning")).run(sockets=[listening])
