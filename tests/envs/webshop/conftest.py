"""The generated shop and the real small one, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.envs.webshop.spec import WebShopSpec


@pytest.fixture(scope="session")
def shop() -> WebShopSpec:
    return WebShopSpec(page_size=4, max_steps=8, per_kind=40)


@pytest.fixture(scope="session")
def files(shared_data: Path) -> dict[str, str]:
    return {
        "root": str(shared_data / "webshop"),
        "products": "items_shuffle_1000.json",
        "attributes": "items_ins_v2_1000.json",
        "human": "items_human_ins.json",
    }


@pytest.fixture(scope="session")
def real(files: dict[str, str]) -> WebShopSpec:
    return WebShopSpec(files=files)
