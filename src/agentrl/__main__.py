"""``python -m agentrl``."""

from agentrl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
