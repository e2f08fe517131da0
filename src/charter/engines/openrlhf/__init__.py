"""OpenRLHF: fine-tuning, reward models and DPO on DeepSpeed, PPO and its relatives on Ray, vLLM and DeepSpeed."""
