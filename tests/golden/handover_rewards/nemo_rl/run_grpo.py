"""NeMo RL's examples/run_grpo.py, with the environment `charter` of rewards_environment.py."""

import os
import runpy
import sys

work = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, work)
os.environ["PYTHONPATH"] = os.pathsep.join([work, *filter(None, [os.environ.get("PYTHONPATH")])])

from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
from nemo_rl.environments.utils import register_env

NAME = "rewards_environment.RewardsEnvironment"
ACTOR_ENVIRONMENT_REGISTRY[NAME] = PY_EXECUTABLES.SYSTEM
register_env("charter", NAME)
script = os.path.join(os.environ["NEMO_RL_DIR"], "examples", "run_grpo.py")
sys.argv[0] = script
runpy.run_path(script, run_name="__main__")
