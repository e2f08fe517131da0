"""Load the environment of a source of prime-rl's file as prime-rl does, in the export's directory; print what it is."""

import json
import sys

import yaml
from verifiers.v1.utils import loaders

sys.path.insert(0, ".")
with open("rl.yaml", encoding="utf-8") as file:
    [source] = yaml.safe_load(file)["orchestrator"]["train"]["source"]
env = loaders.load_environment(loaders.resolve_env_config(source["env"]))
seat = getattr(env.config, sys.argv[1])
print(
    json.dumps(
        {
            "env": type(env).__name__,
            "numbers": [task.data.number for task in env.taskset],
            "highest": env.taskset.config.highest,
            "rewards": sorted(hook.__name__ for hook in next(iter(env.taskset)).hooks("reward")),
            "seat": {"max_turns": seat.max_turns, "max_output_tokens": seat.max_output_tokens},
            "harness": seat.harness.id,
        }
    )
)
