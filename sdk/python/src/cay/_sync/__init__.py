# SPDX-License-Identifier: Apache-2.0
# Generated from _async/__init__.py by tools/unasync.py: do not edit.
"""The client. The twin without async, cay._sync, is generated from these files by tools/unasync.py."""
