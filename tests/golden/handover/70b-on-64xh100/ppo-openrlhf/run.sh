#!/bin/bash
# Stage ppo in openrlhf: runs on each of 8 nodes.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export NODE_RANK="${NODE_RANK:?number of this node, from 0}"
export MASTER_ADDR="${MASTER_ADDR:?address of node 0}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export HF_DATASETS_CACHE=./datasets
export RAY_PORT="${RAY_PORT:-6379}"
export PATH="$(dirname "$(command -v "${PYTHON:-python}")"):$PATH"
if [ "$NODE_RANK" != 0 ]; then
    until (exec 3<>"/dev/tcp/$MASTER_ADDR/$RAY_PORT") 2>/dev/null; do sleep 5; done
    ray start --num-gpus=8 --address="$MASTER_ADDR:$RAY_PORT" --block || true
    exit 0
fi
ray start --num-gpus=8 --head --port=$RAY_PORT
trap 'ray stop' EXIT
export RAY_ADDRESS=127.0.0.1:$RAY_PORT
until "${PYTHON:-python}" -c "import ray; ray.init(); exit(sum(node['Alive'] for node in ray.nodes()) < 8)"; do
    sleep 5
done
"${PYTHON:-python}" -m openrlhf.cli.train_ppo_ray --train.micro_batch_size 4 --train.batch_size 256 --ds.zero_stage 3 --ds.ring_attn_size 1 --ds.tensor_parallel_size 1 --actor.gradient_checkpointing_enable --ds.attn_implementation flash_attention_2 --ds.packing_samples --train.seed 7 --ckpt.save_steps 20 --ckpt.output_dir ./output --ckpt.path ./checkpoints --ckpt.max_num 4 --logger.logging_steps 1 --logger.tensorboard_dir ./tensorboard --logger.wandb.run_name ppo --ds.param_dtype bf16 --actor.adam.betas 0.9 0.95 --actor.optim adam --actor.adam.eps 1e-08 --critic.adam.betas 0.9 0.95 --critic.optim adam --critic.adam.eps 1e-08 --actor.adam.weight_decay 0.0 --critic.adam.weight_decay 0.0 --actor.max_norm 1.0 --critic.max_norm 1.0 --actor.lr_scheduler constant_with_warmup --actor.lr_warmup_ratio 0.0 --critic.lr_scheduler constant_with_warmup --critic.lr_warmup_ratio 0.0 --actor.adam.lr 5e-07 --critic.adam.lr 1e-06 --train.max_epochs 1 --actor.model_name_or_path inputs/policy --reward.model_name_or_path inputs/reward --critic.model_name_or_path inputs/reward --ds.value_head_prefix score --data.prompt_dataset data/prompts.jsonl --data.input_key prompt --data.apply_chat_template --train.num_episodes 1 --data.max_samples 524288 --rollout.batch_size 1024 --rollout.n_samples_per_prompt 1 --rollout.micro_batch_size 4 --rollout.temperature 1.0 --rollout.top_p 1.0 --rollout.max_new_tokens 512 --data.max_len 1024 --algo.advantage.estimator gae --algo.kl.init_coef 0.02 --algo.kl.estimator k1 --reward.clip_range -1000000000.0 1000000000.0 --critic.value_clip 0.2 --algo.advantage.gamma 1.0 --algo.advantage.lambd 0.95 --critic.freezing_steps -1 --actor.eps_clip 0.2 --actor.loss_agg_mode token-mean --algo.advantage.is_correction_level off --actor.num_nodes 8 --actor.num_gpus_per_node 8 --ref.num_nodes 8 --ref.num_gpus_per_node 8 --reward.num_nodes 8 --reward.num_gpus_per_node 8 --critic.num_nodes 8 --critic.num_gpus_per_node 8 --train.colocate_all --vllm.enable_sleep --vllm.num_engines 8 --vllm.tensor_parallel_size 8 --vllm.gpu_memory_utilization 0.5 --vllm.sync_backend nccl
