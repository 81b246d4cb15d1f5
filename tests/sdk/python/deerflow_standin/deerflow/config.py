# SPDX-License-Identifier: Apache-2.0
"""config.yaml, as far as a sandbox provider reads it: any key, missing ones raise AttributeError."""
from types import SimpleNamespace

_app = SimpleNamespace(sandbox=SimpleNamespace())


def get_app_config():
    return _app
