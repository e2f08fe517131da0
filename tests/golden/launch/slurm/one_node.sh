#!/bin/bash
#SBATCH --job-name=charter-shop-ppo-0123abcd
#SBATCH --comment=project=shop&stage=ppo
#SBATCH --partition=gpu
#SBATCH --account=alignment
#SBATCH --qos=high
#SBATCH --constraint=h100|h200
#SBATCH --exclude=n7
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=204801M
#SBATCH --gres=gpu:h100:4
#SBATCH --time=121
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/runs/shop/log.txt
#SBATCH --export=ALL

export OMP_NUM_THREADS=4
HF_TOKEN="$(cat -- '/run/secrets/hf token')" || exit 2
export HF_TOKEN
export JUDGE_KEY="${JUDGE_KEY:?was not set where this job was submitted}"

export CHARTER_RESTART="${SLURM_RESTART_COUNT:-0}" CHARTER_ENGINE_JOB="$SLURM_JOB_ID"
charter_step=(
    --ntasks 1 --ntasks-per-node 1 --cpus-per-task 16
    --kill-on-bad-exit=1 --mpi=none --unbuffered
    bash -c 'export CHARTER_NODE_RANK="$SLURM_NODEID" CHARTER_NODE_NAME="$SLURMD_NODENAME"; exec "$@"' charter-node
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
