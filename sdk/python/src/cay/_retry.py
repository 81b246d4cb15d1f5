# SPDX-License-Identifier: Apache-2.0
"""How long a lost daemon is waited for: it may just be restarting."""

from __future__ import annotations

import time

SECONDS = 5.0
FOLLOW_SECONDS = 30.0  # of one who waits for a command, which goes on meanwhile
FIRST_PAUSE, LAST_PAUSE = 0.02, 0.5


class Patience:
    """Pauses between attempts, longer each time, until SECONDS after the first failure in a row; see FOLLOW_SECONDS."""

    def __init__(self, *, follows: bool = False) -> None:
        self._seconds = FOLLOW_SECONDS if follows else SECONDS
        self._deadline: float | None = None
        self._pause = FIRST_PAUSE

    def next_pause(self) -> float | None:
        """Called after a failure: how long to wait before the next attempt, or None: no more."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            return None
        pause, self._pause = self._pause, min(self._pause * 2, LAST_PAUSE)
        return min(pause, self._deadline - now)

    def restart(self, progress: bool) -> None:
        """Called when the daemon answers; `progress`: with something new, not with yet another empty stream."""
        self._deadline = None
        if progress:
            self._pause = FIRST_PAUSE
