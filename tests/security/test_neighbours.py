# SPDX-License-Identifier: Apache-2.0
"""What a sandbox learns of the host and of other sandboxes, or leaves for them, without a file in common."""

import os
import pathlib

import pytest

from security import harness


@pytest.mark.attack("locks-of-neighbours", "engine", "the locks of all sandboxes in /proc/locks")
@pytest.mark.parametrize("profile", ["default", "strict"])
def test_locks_of_neighbours(cay, box, sandboxes, profile):
    """Each keeper holds a lock: their number and inodes tell of every sandbox of every tenant."""
    neighbour = box()
    inode = f":{os.stat(cay.run_dir / neighbour.id / 'status').st_ino} "
    assert inode in pathlib.Path("/proc/locks").read_text()  # the control: the host sees it
    assert sandboxes(profile).must("cat /proc/locks") == ""
