"""Choose hardware and layout for each stage, and add up time and money.

`project_plan` reads, `make` decides, everything between is pure:

- the work of a stage: `pipeline_names` and `workload` -> `phase`; behind an endpoint `endpoint_use`, `api_judge`;
- places and prices: `machine`, `offers`, `purchase`; what may fail there: `risk`, `stage_risk`;
- ways to run a stage: `search` asks `layout_search` (training), `rl_search` (roles of PPO), `servers` (answering) and
  `processors`; bytes come from `stage_memory`, seconds from `stage_time`, constants from `knowledge`; each answer
  is an `option`;
- one choice for all stages: `gather` -> `decision` -> `problem` -> `choose`;
- the plan: `assemble` -> `stage_plan`, `node_needs`, `storage`, `timeline`, `money` -> `plan`;
- beside it: `ask`, `what_if`, `probe`, `keep_warm`, `scaling_plan`, `training_run`.
"""
