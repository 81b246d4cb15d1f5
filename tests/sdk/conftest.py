# SPDX-License-Identifier: Apache-2.0
"""tests/sdk/python needs the Python of tests/tools/sdk-venv: test_python.py runs it there."""
import importlib.util

collect_ignore = [] if importlib.util.find_spec("cay") else ["python"]
