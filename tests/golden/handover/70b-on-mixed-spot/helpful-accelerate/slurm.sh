#!/bin/bash
#SBATCH --job-name=x-70b-on-mixed-spot-helpful
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=292843M
#SBATCH --gres=gpu:h100:8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=helpful.log
#SBATCH --export=ALL

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export MASTER_PORT="$((20000 + SLURM_JOB_ID % 5000))" RAY_PORT="$((25000 + SLURM_JOB_ID % 5000))"
srun --ntasks 8 --ntasks-per-node 1 --kill-on-bad-exit=1 \
    bash -c 'export NODE_RANK="$SLURM_NODEID"; exec bash run.sh'
