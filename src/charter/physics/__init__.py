"""Needs of one configuration: parameters, flops, bytes, seconds.

Every formula takes columns (`columns`): one configuration is a table of one row. A fact of what runs comes first, the
seconds or bytes that follow from it after:

- an architecture: `shapes` (parameters), `flops` (operations, cached bytes), `matrix_products` (as columns);
- what it runs on and with: `devices`, `serving_devices`, `stacks`, `memory_profiles`, `precision`, `constants`;
- bytes: `memory_shape` -> `kept_activations`, `memory_terms` -> `memory` (training), `inference_memory` (answering),
  `placement_memory` (the roles of PPO);
- seconds: `micro_batch` -> `step_seconds` -> `step_time` (training), `serving_passes` -> `generation`, both in
  `runs`;
- what measurements moved, and how wide intervals are: `fitted`;
- around the accelerators: `node`; from small runs to large ones: `scaling`; the printed formulas: `source_formulas`.

`terms` is what all of them return: named parts with formula and source.
"""
