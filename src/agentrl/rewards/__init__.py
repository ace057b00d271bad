"""Rewards: components that score finished trajectories, the record they leave, and the verifier's self-test."""

from agentrl.rewards.base import Component, NotScored, Score, Scoring, episode_of
from agentrl.rewards.build import Rewards, build, reward_metrics

__all__ = ["Component", "NotScored", "Rewards", "Score", "Scoring", "build", "episode_of", "reward_metrics"]
