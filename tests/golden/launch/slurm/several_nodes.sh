#!/bin/bash
#SBATCH --job-name=charter-shop-ppo-0123abcd
#SBATCH --comment=project=shop&stage=ppo
#SBATCH --exclude=n7,n3
#SBATCH --dependency=afterok:17:18
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:nvidia_a100_sxm4:8
#SBATCH --signal=TERM@120
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/shop/log.txt
#SBATCH --export=ALL


export CHARTER_RESTART="${SLURM_RESTART_COUNT:-0}" CHARTER_ENGINE_JOB="$SLURM_JOB_ID"
charter_step=(
    --ntasks 2 --ntasks-per-node 1 --cpus-per-task 1
    --kill-on-bad-exit=1 --mpi=none --unbuffered
    bash -c 'export CHARTER_NODE_RANK="$SLURM_NODEID" CHARTER_NODE_NAME="$SLURMD_NODENAME"; [ "$SLURM_NODEID" = 0 ] && exec "$@"; trap : TERM USR1; "$@" & charter_pid=$!; while :; do wait "$charter_pid"; charter_code=$?; kill -0 "$charter_pid" 2>/dev/null || break; done; [ "$charter_code" = 6 ] && exit 0; exit "$charter_code"' charter-node
    /opt/charter/bin/python -m charter.launch.agent --stage-dir '/runs/my run/ppo'
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
