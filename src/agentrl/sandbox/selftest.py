"""Programs that try what a level must refuse, run in the level itself: features present are not features working."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.sandbox.pool import Sandbox


def run(box: Sandbox) -> dict[str, bool]:
    return {"runs": box.run("print(6 * 7)").stdout == "42\n"}
