#!/usr/bin/env bash
# Once, before the first start, on one host or on any machine with as much memory as the weights take.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
"${PYTHON:-python}" -m maxtext.checkpoint_conversion.to_maxtext model_name=llama3.1-8b "base_output_directory=${PWD}/start" scan_layers=True use_multimodal=False hardware=cpu skip_jax_distributed_system=True --hf_model_path=inputs/init --save_dtype=float32
