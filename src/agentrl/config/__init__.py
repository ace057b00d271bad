"""Configuration: the typed schema, its choices and bounds, and composition from YAML and the command line."""

from agentrl.config.composing import compose, to_yaml

__all__ = ["compose", "to_yaml"]
