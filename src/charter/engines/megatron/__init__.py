"""Megatron-LM: pretraining and fine-tuning with tensor, pipeline, context and expert parallelism."""
