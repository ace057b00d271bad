"""Freed memory goes back to the system although the command's settings make glibc keep it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from agentrl.allocator import tunables

PROGRAM = """
from pathlib import Path
from agentrl.allocator import give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

blocks = [bytearray(8 << 20) for _ in range(20)]
last = bytearray(8 << 20)  # keeps the heap from shrinking at its end
for b in blocks:
    b[::4096] = b"x" * len(b[::4096])
del blocks, b
kept = resident()
give_back()
print(kept, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone has these settings")
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    environment = {**os.environ, "GLIBC_TUNABLES": tunables()}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    kept, left = map(int, found.stdout.split())
    assert kept > 160 and left < kept - 120
