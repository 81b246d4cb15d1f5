# SPDX-License-Identifier: Apache-2.0
"""How long a lost daemon is waited for: it may just be restarting."""

from __future__ import annotations

import time

SECONDS = 5.0
FIRST_PAUSE, LAST_PAUSE = 0.02, 0.5


class Patience:
    """Pauses between attempts, longer each time, until SECONDS after the first failure in a row."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._pause = FIRST_PAUSE

    def next_pause(self) -> float | None:
        """Called after a failure: how long to wait before the next attempt, or None: no more."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + SECONDS
        if now >= self._deadline:
            return None
        pause, self._pause = self._pause, min(self._pause * 2, LAST_PAUSE)
        return min(pause, self._deadline - now)

    def restart(self, progress: bool) -> None:
        """Called when the daemon answers; `progress`: with something new, not with yet another empty stream."""
        self._deadline = None
        if progress:
            self._pause = FIRST_PAUSE
