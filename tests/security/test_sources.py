# SPDX-License-Identifier: Apache-2.0
"""Images by path: what was judged is what is mounted, and a path is one path whatever is in it."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import subprocess
import threading

import pytest

from security import harness, images

AT_FDCWD, EXCHANGE = -100, 2
TRIES = 150  # without the wall one of ten to fifty wins
USER = harness.USER


@contextlib.contextmanager
def exchanged(one, other):
    """Swaps two names as fast as the kernel does it, which a sandbox can with whatever it may write."""
    libc = ctypes.CDLL(None, use_errno=True)
    stop = threading.Event()

    def race():
        while not stop.is_set():
            for _ in range(64):
                libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE)

    racer = threading.Thread(target=race)
    racer.start()
    try:
        yield
    finally:
        stop.set()
        racer.join()


@pytest.fixture
def workspace(scratch, probe_dir):
    """(what a tenant may write and use as images, a root beside it that it may not)"""
    own = scratch / "acme"
    own.mkdir()
    images.make(own / "img", probe_dir)
    (own / "img/own").write_text("own\n")
    outside = images.make(scratch / "outside", probe_dir)
    (outside / "secret").write_text("secret\n")
    (own / "link").symlink_to(outside)
    return own, outside


def checked_then_opened(path):
    """The control: how it is not to be done. True: the secret was read although the path was found to be good."""
    for _ in range(100000):
        if not os.path.islink(path) and (path / "secret").exists():
            return True
    return False


@pytest.mark.attack("image-exchanged", "files", "an image that is exchanged with a link while it is looked at")
@pytest.mark.parametrize("pool", [0, 8])
def test_an_image_that_is_exchanged(daemons, workspace, pool):
    own, _ = workspace
    rules = f"[policy]\nimages = dir:{own}/*\nmounts_rw = {own}\n"
    daemon = daemons(policy=rules, pool=pool)
    token = daemon.token("t", tenant="acme")

    def attempt():
        """True: the sandbox has the root that the tenant may not have; None: it was refused."""
        answer = daemon.post("/sandboxes", {"image": f"dir:{own}/img"}, token=token)
        if answer.status != 201:
            assert answer.status in (403, 404, 409, 503), answer
            return None
        box = answer.body["id"]
        found = [daemon.get(f"/sandboxes/{box}/files?path=/{name}", token=token).status for name in ("own", "secret")]
        assert daemon.delete(f"/sandboxes/{box}", token=token).status == 204
        assert sorted(found) == [200, 404], found
        return found[1] == 200

    assert attempt() is False  # the control: as it is, it is served
    with exchanged(own / "img", own / "link"):
        assert checked_then_opened(own / "img")
        results = [attempt() for _ in range(TRIES)]
    assert True not in results, results
    assert False in results, "nothing was served, so nothing was tried"


@pytest.mark.attack("image-link", "files", "an image that is a link to a root that may not be used")
def test_an_image_that_is_a_link(daemons, workspace):
    own, outside = workspace
    daemon = daemons(policy=f"[policy]\nimages = dir:{own}/**\n")
    token = daemon.token("t", tenant="acme")
    refused = daemon.post("/sandboxes", {"image": f"dir:{own}/link"}, token=token)
    assert refused.status == 403 and str(outside) not in str(refused.body), refused
    box = daemon.create(image=f"dir:{own}/img", token=token)
    assert daemon.get(f"/sandboxes/{box}/files?path=/own", token=token).body == b"own\n"


def test_a_default_image_that_is_a_link(daemons, workspace):
    """The operator's own choice, for those without a tenant; a tenant's is judged."""
    own, _ = workspace
    daemon = daemons()
    daemon.cay.config.write_text(f"[defaults]\nimage = dir:{own}/link\n")
    daemon.restart()
    box = daemon.create()
    assert daemon.get(f"/sandboxes/{box}/files?path=/secret").body == b"secret\n"
    named = daemon.post("/sandboxes", {"image": f"dir:{own}/link"})
    assert named.status == 201, named  # judged by what it leads to


# -- what separates layers, options and lines for somebody


def run(kind, engine, *args):
    return harness.as_user(engine, *args) if kind == "rootless" else engine.run(*args)


@pytest.mark.attack("image-path-layers", "files", "a ':' in an image's path that adds a layer")
@pytest.mark.parametrize("kind", ["root", "rootless"])
@pytest.mark.parametrize("glue", [":", "\\:", ",lowerdir=", "\n", "\\", ",", "::"])
def test_a_path_is_one_path(kind, request, workspace, probe_dir, glue):
    """The name of the image is that of a root, the separator, and the path of a directory of the host."""
    engine = request.getfixturevalue("cay" if kind == "root" else "rootless")
    own, outside = workspace
    bait = pathlib.Path(f"{own}/img{glue}{outside}")
    bait.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(own / "img", bait)
    (bait / "bait").write_text("bait\n")
    subprocess.run(["chown", "-R", f"{USER}:{USER}", own], check=True)
    done = run(kind, engine, "run", "--image", f"dir:{bait}", "--", "/bin/probe", "read", "/secret")
    assert "secret" not in done.stdout.replace("/secret", ""), done
    harness.verdict(done).must_be_refused()
    done = run(kind, engine, "run", "--image", f"dir:{bait}", "--", "/bin/probe", "read", "/bait")
    harness.verdict(done).must_win()  # and as one path it works
    done = run(kind, engine, "run", "--image", f"dir:{outside}", "--", "/bin/probe", "read", "/secret")
    harness.verdict(done).must_win()  # the control: this is how the other layer would show


# -- mount targets


@pytest.mark.attack("mount-target-spelling", "engine", "a mount over /proc, /sys or /dev that is spelled otherwise")
@pytest.mark.parametrize(
    "target", ["//proc", "/./dev", "//proc/sys/kernel", "/.//sys/", "/dev/.", "/./", "//", "/x/../proc"]
)
def test_mount_targets_of_the_engine(cay, scratch, target):
    done = cay.run("run", "-v", f"{scratch}:{target}:ro", "--", "cat", "/proc/self/mountinfo")
    assert done.returncode == 125 and "mount" in done.stderr and done.stderr.count("\n") == 1, done


def test_mount_targets_are_cleaned(cay, scratch):
    (scratch / "there").touch()
    one = ("-v", f"{scratch}:/mnt/one:ro")
    script = "ls /mnt/one; grep -c ' /mnt/one ' /proc/self/mountinfo"
    done = cay.run("run", "-v", f"{scratch}://mnt/./one//:ro", "--", "sh", "-c", script)
    assert done.stdout == "there\n1\n", done
    done = cay.run("run", *one, "-v", f"{scratch}:/mnt//one:ro", "--", "true")
    assert done.returncode == 125 and "two mounts at /mnt/one" in done.stderr, done
