#!/bin/bash
# Stage helpful in maxtext: runs on each of 8 nodes.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec "${PYTHON:-python}" -m maxtext.trainers.post_train.sft.train_sft_native maxtext.yml "base_output_directory=${PWD}" "load_parameters_path=${PWD}/start/0/items"
