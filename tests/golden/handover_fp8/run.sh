#!/bin/bash
# Stage helpful in megatron: runs on each of 8 nodes.
# PYTHON is the interpreter of the environment that holds the engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export NODE_RANK="${NODE_RANK:?number of this node, from 0}"
export MASTER_ADDR="${MASTER_ADDR:?address of node 0}"
export MASTER_PORT="${MASTER_PORT:-29500}"
export CUDA_DEVICE_MAX_CONNECTIONS=1
export HF_DATASETS_CACHE=./datasets
exec "${PYTHON:-python}" -m torch.distributed.run --nnodes 8 --nproc-per-node 8 --node-rank "${NODE_RANK}" --master-addr "${MASTER_ADDR}" --master-port "${MASTER_PORT}" "${MEGATRON_DIR}/pretrain_gpt.py" --micro-batch-size 8 --global-batch-size 128 --tensor-model-parallel-size 8 --sequence-parallel --pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 10 --context-parallel-size 1 --expert-model-parallel-size 1 --overlap-grad-reduce --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --kv-channels 128 --group-query-attention --num-query-groups 8 --max-position-embeddings 131072 --position-embedding-type rope --rotary-base 500000 --rotary-percent 1.0 --use-rope-scaling --rope-scaling-factor 8.0 --normalization RMSNorm --norm-epsilon 1e-05 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 --seq-length 2048 --train-iters 1057 --eval-iters 0 --lr 5e-06 --lr-decay-style cosine --lr-decay-iters 1057 --lr-warmup-iters 50 --min-lr 5.000000000000001e-07 --weight-decay 0.0 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-08 --clip-grad 1.0 --bf16 --fp8-format hybrid --fp8-recipe tensorwise --split 100,0,0 --tokenizer-model ./tokenizer --dataloader-type single --num-workers 2 --data-path data/data.jsonl --sft --tokenizer-type SFTTokenizer --sft-tokenizer-prompt-format identity --no-create-attention-mask-in-dataloader --save-interval 100 --save ./checkpoints --load ./checkpoints --pretrained-checkpoint ./start --ckpt-format torch_dist --exit-on-missing-checkpoint --exit-signal-handler --seed 7 --optimizer adam --attention-dropout 0.0 --hidden-dropout 0.0 --calculate-per-token-loss --attention-backend auto --log-interval 1 --log-throughput --tensorboard-dir ./tensorboard
