# SPDX-License-Identifier: Apache-2.0
"""The abstract backend, and the question whether a sandbox is ready: at once, then every second."""
import time
from abc import ABC, abstractmethod

import httpx


def probes_until_ready(sandbox_url, timeout=60):
    """How many probes it took; None: not ready in time."""
    deadline, probes = time.monotonic() + timeout, 0
    while time.monotonic() < deadline:
        probes += 1
        try:
            if httpx.get(f"{sandbox_url}/v1/sandbox", timeout=5).status_code == 200:
                return probes
        except httpx.HTTPError:
            pass
        time.sleep(1)
    return None


class SandboxBackend(ABC):
    @abstractmethod
    def create(self, thread_id, sandbox_id, extra_mounts=None): ...

    @abstractmethod
    def destroy(self, info): ...

    @abstractmethod
    def is_alive(self, info): ...

    @abstractmethod
    def discover(self, sandbox_id): ...

    def list_running(self):
        return []
