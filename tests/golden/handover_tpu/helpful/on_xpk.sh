#!/usr/bin/env bash
# On a cluster of GKE, by XPK. DIRECTORY: this directory as the pods see it (a mounted bucket, or NFS).
set -euo pipefail
xpk workload create --cluster "${GKE_CLUSTER:?}" --docker-image "${IMAGE:?image that holds MaxText}" \
    --workload eight-billion-on-tpus-helpful --tpu-type v6e-64 --num-slices 1 \
    --command "cd ${DIRECTORY:?} && bash run.sh"
