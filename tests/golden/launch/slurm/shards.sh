#!/bin/bash
#SBATCH --job-name=charter-shop-ppo-0123abcd
#SBATCH --comment=project=shop&stage=ppo
#SBATCH --array=0-999%256
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=60
#SBATCH --signal=B:TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/shop/log.txt
#SBATCH --export=ALL


export CHARTER_RESTART="${SLURM_RESTART_COUNT:-0}" CHARTER_ENGINE_JOB="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
export CHARTER_SHARD="$SLURM_ARRAY_TASK_ID"; export CHARTER_NODE_RANK=0 CHARTER_NODE_NAME="$SLURMD_NODENAME"
exec /opt/charter/bin/python -m charter.launch.agent --stage-dir '/runs/my run/ppo'
