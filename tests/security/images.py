# SPDX-License-Identifier: Apache-2.0
"""A root filesystem of one static program, for the attacks that come with an image (dir:PATH)."""

import shutil

PASSWD = "root:x:0:0:root:/root:/bin/sh\nevil:x:1000:1000::/home:/bin/sh\n"
GROUP = "root:x:0:\nevil:x:1000:\n"
FOLDERS = ("bin", "etc", "proc", "sys", "dev", "tmp", "run", "root", "home", "var", "mnt")


def make(folder, probe_dir, without=()):
    """FOLDERS except `without`, the probe as /bin/probe, a passwd file. Returns the folder."""
    folder.mkdir()
    folder.chmod(0o755)
    for name in FOLDERS:
        if name not in without:
            (folder / name).mkdir(mode=0o755)
    if "etc" not in without:
        (folder / "etc/passwd").write_text(PASSWD)
        (folder / "etc/group").write_text(GROUP)
    shutil.copy(probe_dir / "probe", folder / "bin/probe")
    return folder
