"""A guessing game over verifiers 0.4: the environment's own code is the user; one rule of two is a reward by weight."""

import verifiers.v1 as vf


class GuessData(vf.TaskData):
    number: int
    answer: str | None = None


class GuessTask(vf.Task[GuessData, vf.State, vf.TaskConfig]):
    @vf.stop
    async def gave_up(self, so_far: vf.Trace) -> bool:
        return so_far.last_reply == "I give up"

    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.number))

    @vf.reward(weight=-0.5)
    async def turns_taken(self, trace) -> float:
        if trace.last_reply == "break":
            raise ValueError("it broke")
        return float(trace.num_turns)

    @vf.metric
    async def is_truncated(self, trace) -> float:
        return float(trace.is_truncated)


class GuessConfig(vf.TasksetConfig):
    highest: int = 9


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    def load(self):
        for number in range(self.config.highest + 1):
            prompt = f"Guess up to {self.config.highest}."
            data = GuessData(prompt=prompt, system_prompt="Digits alone.", number=number, answer=str(number))
            yield GuessTask(data, self.config.task)


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as game:
            segment = await game.turn()
            while not segment.terminated and segment.last_reply != str(task.data.number):
                guess = segment.last_reply
                hint = "no number" if not guess.isdigit() else "higher" if int(guess) < task.data.number else "lower"
                segment = await game.turn(f"{hint}, try {game.trace.num_turns}")


__all__ = ["GuessEnv", "GuessTaskset"]
