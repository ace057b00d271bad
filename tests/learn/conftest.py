from rollout.conftest import kits, one_thread  # noqa: F401
