# SPDX-License-Identifier: Apache-2.0
"""The client. The twin without async, cay._sync, is generated from these files by tools/unasync.py."""
