"""Verdicts on disk by content hash: one SQLite file, safe to share between threads and runs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

from agentrl.errors import UserError


class VerdictCache:
    """``path`` None keeps verdicts in memory. UserError when the file cannot be opened or is no such cache."""

    def __init__(self, path: Path | None):
        self._lock = threading.Lock()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(str(path or ":memory:"), timeout=30, check_same_thread=False)
            self._db.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT NOT NULL)")
            self._db.commit()
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cache={path}: cannot be used as a cache of verdicts: {error}") from error

    def get(self, key: str) -> Any:
        """The verdict, or None. A row that cannot be read counts as absent."""
        try:
            with self._lock:
                row = self._db.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])
        except (sqlite3.Error, ValueError):
            return None

    def put(self, key: str, verdict: Any) -> bool:
        """Keep a verdict; False when it could not be written (the disk is full): it is then asked again next time."""
        try:
            with self._lock, self._db:
                self._db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, json.dumps(verdict)))
            return True
        except sqlite3.Error:
            return False


def content_key(*content: Any) -> str:
    """SHA-256 over JSON-able content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
