# SPDX-License-Identifier: Apache-2.0
"""What the tests of cay.adapters.deerflow share."""
import importlib
import sys

MODULE = "cay.adapters.deerflow"


def load(monkeypatch, *paths):
    """The adapter, imported anew with these directories on the path: it looks for DeerFlow when it is imported."""
    for name in [n for n in sys.modules if n == MODULE or n.split(".")[0] in ("deerflow", "src")]:
        monkeypatch.delitem(sys.modules, name)
    for path in paths:
        monkeypatch.syspath_prepend(str(path))
    return importlib.import_module(MODULE)
