# SPDX-License-Identifier: Apache-2.0
"""A file worker inside that was taken over: what it answers must not harm the caller on the host."""

import io
import os
import tarfile
import time

import pytest

from security import harness, hostile

DEEP = "../" * 12

# what a hostile archive tries; {victim} is a directory of the host that must stay as it is
ARCHIVES = {
    "parent-name": [
        (DEEP + "{victim}/planted", "f", "evil", 0o644),
        ("../../victim/planted", "f", "evil", 0o644),
    ],
    "absolute-name": [("/{victim}/planted", "f", "evil", 0o644)],
    "parent-inside-name": [("a", "d", "", 0o755), ("a/" + DEEP + "{victim}/planted", "f", "evil", 0o644)],
    "link-then-file-below": [("a", "l", "/{victim}", 0o777), ("a/planted", "f", "evil", 0o644)],
    "link-then-same-file": [("a", "l", "/{victim}/secret", 0o777), ("a", "f", "evil", 0o644)],
    "link-then-directory": [
        ("a", "l", "/{victim}", 0o777),
        ("a", "d", "", 0o700),
        ("a/planted", "f", "evil", 0o644),
    ],
    "directory-then-link": [
        ("a", "d", "", 0o755),
        ("a", "l", "/{victim}", 0o777),
        ("a/planted", "f", "evil", 0o644),
    ],
    "link-chain": [
        ("a", "d", "", 0o755),
        ("a/b", "l", "..", 0o777),
        ("a/b/c", "l", "/{victim}", 0o777),
        ("c/planted", "f", "evil", 0o644),
        ("a/b/c/planted", "f", "evil", 0o644),
    ],
    "hard-link-then-file": [("a", "h", "/{victim}/secret", 0o644), ("a", "f", "evil", 0o644)],
    "hard-link-parent": [("a", "h", DEEP + "{victim}/secret", 0o644), ("a", "f", "evil", 0o644)],
    "link-mode": [("a", "l", "/{victim}/secret", 0o4777), ("a/", "d", "", 0o4777)],
}


def fill(entries, victim):
    word = str(victim).lstrip("/")
    return [
        (name.format(victim=word), kind, value.format(victim=word), mode)
        for name, kind, value, mode in entries
    ]


@pytest.fixture
def victim(scratch):
    folder = scratch / "victim"
    folder.mkdir()
    (folder / "secret").write_text("host\n")
    (folder / "secret").chmod(0o600)
    return folder


def state(folder):
    return [(p.name, p.read_text(), p.stat().st_mode) for p in sorted(folder.iterdir())] + [
        folder.stat().st_mode
    ]


@pytest.mark.attack("hostile-archive-*", "files", "an archive of a hostile worker unpacked on the host")
@pytest.mark.parametrize("kind", ARCHIVES)
def test_hostile_archive(cay, box, scratch, victim, kind):
    data = hostile.archive(*fill(ARCHIVES[kind], victim))
    before = state(victim)
    if kind not in ("directory-then-link", "link-mode", "link-then-directory"):
        control(data, scratch, victim, before)
    sandbox = box()
    (scratch / "out").mkdir()
    with hostile.HostileWorker(cay, sandbox.id, hostile.serve_archive(data)) as worker:
        for destination in (scratch / "out", scratch / "out/new"):
            done = cay.run("cp", f"{sandbox.id}:/tree", destination, timeout=20)
            assert done.returncode in (0, 125), done
        assert "FS_TAR_OUT" in worker.asked, worker.asked
    assert state(victim) == before
    assert set(os.listdir(scratch)) <= {"out", "victim", "control"}


def control(data, scratch, victim, before):
    """An unpacker that trusts the archive does reach the victim."""
    place = scratch / "control" / "a" / "b"
    place.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            try:
                # the naive way: join and open
                target = os.path.join(place, member.name)
                if member.issym():
                    os.symlink(member.linkname, target)
                elif member.islnk():
                    os.link(os.path.join(place, member.linkname), target)
                elif member.isdir():
                    os.mkdir(target)
                else:
                    with open(target, "wb") as f:
                        f.write(tar.extractfile(member).read())
            except OSError:
                pass
    assert state(victim) != before, "the control does not show the attack at work"
    for path in victim.iterdir():
        path.unlink()
    (victim / "secret").write_text("host\n")
    (victim / "secret").chmod(0o600)
    os.system(f"rm -rf {scratch}/control")


@pytest.mark.attack("hostile-archive-special", "files", "devices and set-uid files in a hostile archive")
def test_hostile_archive_with_devices(cay, box, scratch):
    data = hostile.archive(
        ("null", "c", "", 0o666),
        ("root", "f", "#!/bin/sh\n", 0o6755),
        ("pipe", "p", "", 0o666),
        ("plain", "f", "x", 0o644),
    )
    sandbox = box()
    (scratch / "out").mkdir()
    with hostile.HostileWorker(cay, sandbox.id, hostile.serve_archive(data)):
        cay.run("cp", f"{sandbox.id}:/tree", scratch / "out", timeout=20)
    members = tarfile.open(fileobj=io.BytesIO(data)).getmembers()
    assert [m.name for m in members if m.ischr() or m.mode & 0o6000] == [
        "null",
        "root",
    ]  # the control: they are in it
    for path in (scratch / "out").rglob("*"):
        info = path.lstat()
        assert not info.st_mode & 0o6000, f"{path} is set-uid on the host"
        assert path.is_file() or path.is_dir() or path.is_fifo(), f"{path} is a device on the host"


NONSENSE = {
    "garbage": lambda name, tag: b"\xff" * 4096,
    "huge-frame": lambda name, tag: hostile.HEADER.pack(0x7FFFFFFF, hostile.TYPES["FS_DATA"], 0, 1, tag),
    "wrong-version": lambda name, tag: hostile.HEADER.pack(0, hostile.TYPES["MSG_OK"], 0, 9, tag),
    "unknown-type": lambda name, tag: hostile.frame(999, tag) + hostile.frame("MSG_OK", tag),
    "wrong-tag": lambda name, tag: hostile.frame("MSG_OK", tag + 1),
    "descriptors-announced": lambda name, tag: hostile.frame("MSG_OK", tag, fds=8),
    "field-beyond-the-end": lambda name, tag: hostile.HEADER.pack(6, hostile.TYPES["MSG_OK"], 0, 1, tag)
    + b"\x0a\x00\xff\xff\xff\x7f",
    "error-with-bad-code": lambda name, tag: hostile.frame(
        "MSG_ERROR", tag, text="x" * 5000 + "\x1b[31m\n\n"
    ),
    "entry-without-a-path": lambda name, tag: hostile.frame("FS_ENTRY", tag) + hostile.frame("MSG_OK", tag),
    "entry-with-a-control-path": lambda name, tag: hostile.frame(
        "FS_ENTRY", tag, path="\x1b]0;owned\x07\n../../x", mode=0o100644
    )
    + hostile.frame("MSG_OK", tag),
}


@pytest.mark.attack("hostile-worker-nonsense-*", "files", "nonsense of a hostile worker against the caller")
@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize(
    "command",
    [("fs", "cat", "{id}", "/f"), ("fs", "ls", "{id}", "/"), ("cp", "{id}:/f", "{scratch}/out")],
    ids=["cat", "ls", "cp"],
)
def test_nonsense(cay, box, scratch, command, kind):
    sandbox = box()
    words = [w.format(id=sandbox.id, scratch=scratch) for w in command]
    with hostile.HostileWorker(cay, sandbox.id, NONSENSE[kind]) as worker:
        start = time.monotonic()
        done = cay.run(*words, timeout=20, text=False)
        assert time.monotonic() - start < 15
        assert worker.asked, "the control: the hostile worker was asked"
    assert done.returncode in (0, 125), done
    assert b"\x1b" not in done.stdout + done.stderr, "control characters of the sandbox reach the terminal"
    assert sandbox.alive()


@pytest.mark.attack(
    "hostile-worker-endless", "exhaustion", "an answer without end against the caller's memory"
)
@pytest.mark.parametrize("kind", ["FS_ENTRY", "FS_DATA"])
def test_endless_answer(cay, box, scratch, kind):
    sandbox = box()
    sent = [0]

    def endless(name, tag):
        piece = hostile.frame(kind, tag, path="n" * 200, mode=0o100644, data=b"x") * 200
        while sent[0] < 200 << 20:
            sent[0] += len(piece)
            yield piece

    with hostile.HostileWorker(cay, sandbox.id, endless):
        caller = cay.popen(
            "fs", "ls" if kind == "FS_ENTRY" else "cat", sandbox.id, "/", stdout=open(os.devnull, "wb")
        )
        peak, end = 0, time.monotonic() + 5
        while caller.poll() is None and time.monotonic() < end:
            peak = max(peak, harness.memory_of(caller.pid))
            time.sleep(0.02)
        caller.kill()
        caller.communicate()
    assert sent[0] > 0  # the control: it did send
    assert peak < 64 << 20, f"the caller kept {peak >> 20} MiB of {sent[0] >> 20} MiB"
