# SPDX-License-Identifier: Apache-2.0
"""The provider's way with a backend: cache, warm pool, lock, discover, create, probe, destroy what is not ready."""
import fcntl
import hashlib
import os
import tempfile

from deerflow.config import get_app_config

from .backend import SandboxBackend, probes_until_ready


class AioSandboxProvider:
    def __init__(self):
        settings = get_app_config().sandbox
        self._config = {"idle_timeout": getattr(settings, "idle_timeout", 600), "mounts": getattr(settings, "mounts", []),
                        "environment": getattr(settings, "environment", {}),
                        "container_prefix": getattr(settings, "container_prefix", "deer-flow-sandbox"),
                        "thread_data_mounts": getattr(settings, "thread_data_mounts", None)}
        self._backend: SandboxBackend = self._create_backend()
        self._active, self._probes = {}, {}
        self._warm = {info.sandbox_id: info for info in self._backend.list_running()}

    def _create_backend(self):
        raise NotImplementedError

    @property
    def uses_thread_data_mounts(self):
        return False

    @staticmethod
    def sandbox_id(user_id, thread_id):
        return hashlib.sha256(f"{user_id}:{thread_id}".encode()).hexdigest()[:16]

    def acquire(self, thread_id, user_id="u1", extra_mounts=None):
        name = self.sandbox_id(user_id, thread_id)
        known = self._active.get(name) or self._warm.pop(name, None)
        if known and self._backend.is_alive(known):
            self._active[name] = known
            return name
        with open(os.path.join(tempfile.gettempdir(), f"{name}.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._active[name] = self._backend.discover(name) or self._create(thread_id, name, user_id, extra_mounts)
        return name

    def _create(self, thread_id, name, user_id, extra_mounts):
        info = self._backend.create(thread_id, name, extra_mounts=extra_mounts or None, user_id=user_id,
                                    provision_lark_cli_runtime=False, provision_lark_cli_broker=False)
        self._probes[name] = probes_until_ready(info.sandbox_url)
        if not self._probes[name]:
            self._backend.destroy(info)
            raise RuntimeError(f"sandbox {name} is not ready")
        return info

    def get(self, name):
        return self._active.get(name)

    def release(self, name):
        self._warm[name] = self._active.pop(name)

    def shutdown(self):
        for info in [*self._active.values(), *self._warm.values()]:
            self._backend.destroy(info)
        self._active, self._warm = {}, {}
