"""The ways to place the roles of a PPO stage."""
