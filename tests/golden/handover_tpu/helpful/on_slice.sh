#!/usr/bin/env bash
# On the hosts of a slice (gcloud compute tpus tpu-vm create NAME --accelerator-type v6e-64 ...).
# DIRECTORY is this directory as every host sees it.
set -euo pipefail
gcloud compute tpus tpu-vm ssh "${TPU_NAME:?}" --zone "${ZONE:?}" --worker all \
    --command "cd ${DIRECTORY:?} && bash run.sh"
