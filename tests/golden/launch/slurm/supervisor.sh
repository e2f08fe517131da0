#!/bin/bash
#SBATCH --job-name=charter-shop-supervisor-0123abcd
#SBATCH --comment=project=shop&stage=ppo
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/shop/log.txt
#SBATCH --export=ALL

export CHARTER_SENT=slurm

export CHARTER_RESTART="${SLURM_RESTART_COUNT:-0}" CHARTER_ENGINE_JOB="$SLURM_JOB_ID"
charter_step=(
    --ntasks 1 --ntasks-per-node 1 --cpus-per-task 1
    --kill-on-bad-exit=1 --mpi=none --unbuffered
    bash -c 'export CHARTER_NODE_RANK="$SLURM_NODEID" CHARTER_NODE_NAME="$SLURMD_NODENAME"; exec "$@"' charter-node
    /opt/charter/bin/python -m charter.cli.main run -C /runs/shop --on slurm --yes
)
trap : TERM
srun "${charter_step[@]}" &
charter_pid=$!
while :; do
    wait "$charter_pid"
    charter_code=$?
    kill -0 "$charter_pid" 2>/dev/null || break
done
exit "$charter_code"
