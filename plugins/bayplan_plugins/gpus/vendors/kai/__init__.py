"""KAI's shares of GPUs: what pods ask for, and the groups of pods that share one."""
