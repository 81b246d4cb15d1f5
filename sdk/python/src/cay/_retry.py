# SPDX-License-Identifier: Apache-2.0
"""How long a lost daemon is waited for: it may just be restarting."""

from __future__ import annotations

import time

SECONDS = 5.0
FOLLOW_SECONDS = 30.0  # of one who waits for a command, which goes on meanwhile
FIRST_PAUSE, LAST_PAUSE = 0.02, 0.5
STEADY_SECONDS = 1.0  # a connection that held this long was one


class Patience:
    """Pauses between attempts, longer each time, until SECONDS after the first failure in a row; see FOLLOW_SECONDS.

    A failure is the first of a row after progress, or if the connection that it ended had held for a while. So a
    command may be silent for as long as it likes, and a server that ends each stream at once is given up.
    """

    def __init__(self, *, follows: bool = False) -> None:
        self._seconds = FOLLOW_SECONDS if follows else SECONDS
        self._deadline: float | None = None
        self._connected: float | None = None
        self._pause = FIRST_PAUSE

    def connected(self) -> None:
        """Called when there is a connection that may be held for long."""
        self._connected = time.monotonic()

    def ended(self) -> None:
        """Called when it ended in a way that a longer life does not excuse."""
        self._connected = None

    def progress(self) -> None:
        """Called when something new came."""
        self._deadline, self._pause = None, FIRST_PAUSE

    def next_pause(self) -> float | None:
        """Called after a failure: how long to wait before the next attempt, or None: no more."""
        now = time.monotonic()
        if self._connected is not None and now - self._connected > STEADY_SECONDS:
            self.progress()
        self._connected = None
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            return None
        pause, self._pause = self._pause, min(self._pause * 2, LAST_PAUSE)
        return min(pause, self._deadline - now)
