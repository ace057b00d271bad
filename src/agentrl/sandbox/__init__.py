"""Running untrusted Python programs: see docs/security.md for what holds at which level, and what does not."""

from agentrl.sandbox.pool import Sandbox
from agentrl.sandbox.result import Limits, Result, SandboxBroken, SandboxUnavailable, Status
from agentrl.sandbox.session import Session
from agentrl.sandbox.text import clean, cut_middle

__all__ = [
    "Limits",
    "Result",
    "Sandbox",
    "SandboxBroken",
    "SandboxUnavailable",
    "Session",
    "Status",
    "clean",
    "cut_middle",
]
