"""agentrl: train language-model agents with reinforcement learning, and believe the number."""

__version__ = "0.1.0"
