# SPDX-License-Identifier: Apache-2.0
"""A file worker inside that was taken over: what it answers must not harm the caller on the host."""

import os
import pty
import shutil
import stat
import subprocess
import time

import pytest

from security import harness, hostile

DEEP = "../" * 12

# what a hostile listing tries; {victim} is a directory of the host that must stay as it is
TREES = {
    "parent-name": [
        (DEEP + "{victim}/planted", "f", "evil", 0o644),
        ("../../victim/planted", "f", "evil", 0o644),
    ],
    "parent-name-only": [("..", "l", "/{victim}", 0o777), ("../victim/planted", "f", "evil", 0o644)],
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
        ("a/x", "f", "evil", 0o644),
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
    "hard-link-out": [("a", "h", DEEP + "{victim}/secret", 0o600), ("b", "h", "/{victim}/secret", 0o600)],
    "hard-link-through-a-link": [("a", "l", "/{victim}", 0o777), ("b", "h", "a/secret", 0o600)],
    "hard-link-to-a-link": [("a", "l", "/{victim}/secret", 0o777), ("b", "h", "a", 0o600), ("b", "f", "evil", 0o644)],
    "dot-names": [
        ("./a", "l", "/{victim}", 0o777),
        ("a/./planted", "f", "evil", 0o644),
        ("a//planted", "f", "evil", 0o644),
    ],
}
# an unpacker without any care stops at the second entry of these, so they have no control of their own
UNCONTROLLED = ("directory-then-link", "parent-name-only", "hard-link-out", "hard-link-through-a-link", "hard-link-to-a-link")


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
        folder.stat().st_mode,
        [p.stat().st_nlink for p in sorted(folder.iterdir())],
    ]


@pytest.mark.attack("hostile-listing-*", "files", "the listing of a hostile worker copied to the host")
@pytest.mark.parametrize("kind", TREES)
def test_hostile_listing(cay, box, scratch, victim, kind):
    entries = fill(TREES[kind], victim)
    before = state(victim)
    if kind not in UNCONTROLLED:
        control(entries, scratch, victim, before)
    sandbox = box()
    (scratch / "out").mkdir()
    with hostile.HostileWorker(cay, sandbox.id, hostile.serve_tree(entries)) as worker:
        for destination in (scratch / "out", scratch / "out/new"):
            # once for the whole, and once for each tail of it: a refused entry must not hide the next
            for start in range(len(entries)):
                worker.answer = hostile.serve_tree(entries[start:])
                done = cay.run("cp", f"{sandbox.id}:/tree", destination, timeout=20)
                assert done.returncode in (0, 125), done
        assert "FS_TAR_OUT" in worker.asked, worker.asked
    assert state(victim) == before
    assert set(os.listdir(scratch)) <= {"out", "victim"}


def control(entries, scratch, victim, before):
    """A copier that joins names and opens them does reach the victim."""
    place = scratch / "control" / "a" / "b"
    place.mkdir(parents=True)
    for name, kind, value, _ in entries:
        target = os.path.join(place, name)
        try:
            if kind == "l":
                os.symlink(value, target)
            elif kind == "d":
                os.mkdir(target)
            else:
                with open(target, "w") as f:
                    f.write(value)
        except OSError:
            pass
    assert state(victim) != before, "the control does not show the attack at work"
    for path in victim.iterdir():
        path.unlink()
    (victim / "secret").write_text("host\n")
    (victim / "secret").chmod(0o600)
    shutil.rmtree(scratch / "control")


@pytest.mark.attack(
    "hostile-listing-special", "files", "devices and set-uid files in the listing of a hostile worker"
)
def test_hostile_listing_with_devices(cay, box, scratch):
    entries = [
        ("null", "c", "", 0o666),
        ("disk", "b", "", 0o666),
        ("root", "f", "#!/bin/sh\n", 0o6755),
        ("pipe", "p", "", 0o666),
        ("open", "d", "", 0o7777),
        ("plain", "f", "x", 0o644),
    ]
    sandbox = box()
    (scratch / "out").mkdir()
    with hostile.HostileWorker(cay, sandbox.id, hostile.serve_tree(entries)):
        cay.run("cp", f"{sandbox.id}:/tree", scratch / "out", timeout=20)
    found = {p.name: p.lstat() for p in (scratch / "out").rglob("*")}
    assert "plain" in found  # the control: ordinary entries of the same listing arrive
    for name, info in found.items():
        assert not info.st_mode & 0o6000, f"{name} is set-uid on the host"
        assert stat.S_ISREG(info.st_mode) or stat.S_ISDIR(
            info.st_mode
        ), f"{name} is a special file on the host"


@pytest.mark.attack("hostile-listing-hard-link", "files", "a hard link to a file that was in the destination")
def test_hostile_hard_link_to_what_was_there(cay, box, scratch):
    """Else a later change of the one name would change the other."""
    sandbox = box()
    (scratch / "out").mkdir()
    (scratch / "out" / "mine").write_text("mine")
    entries = [("ours", "f", "x", 0o644), ("again", "h", "ours", 0o644), ("taken", "h", "mine", 0o644)]
    with hostile.HostileWorker(cay, sandbox.id, hostile.serve_tree(entries)):
        done = cay.run("cp", f"{sandbox.id}:/tree/.", scratch / "out", timeout=20)
    assert done.returncode == 125 and "taken" in done.stderr, done
    assert sorted(os.listdir(scratch / "out")) == ["again", "mine", "ours"]
    assert (scratch / "out" / "mine").stat().st_nlink == 1 and (scratch / "out" / "ours").stat().st_nlink == 2


NONSENSE = {
    "garbage": lambda name, tag: b"\xff" * 4096,
    "huge-frame": lambda name, tag: hostile.HEADER.pack(0x7FFFFFFF, hostile.TYPES["FS_DATA"], 0, 0, 1, tag),
    "wrong-version": lambda name, tag: hostile.HEADER.pack(0, hostile.TYPES["MSG_OK"], 0, 0, 9, tag),
    "data-of-another-version": lambda name, tag: hostile.HEADER.pack(0, hostile.TYPES["FS_DATA"], 0, 0, 9, tag),
    "unknown-type": lambda name, tag: hostile.frame(250, tag) + hostile.frame("MSG_OK", tag),
    "wrong-tag": lambda name, tag: hostile.frame("MSG_OK", tag + 1),
    "descriptors-announced": lambda name, tag: hostile.frame("MSG_OK", tag, fds=8),
    "field-beyond-the-end": lambda name, tag: hostile.HEADER.pack(6, hostile.TYPES["MSG_OK"], 0, 0, 1, tag)
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
    assert sandbox.alive()


@pytest.mark.attack(
    "terminal-escape-*", "files", "control characters of a file name on the operator's terminal"
)
@pytest.mark.parametrize(
    "command",
    [
        ("fs", "ls", "{id}", "/tmp/e"),
        ("fs", "find", "{id}", "/tmp/e"),
        ("procs", "{id}"),
        ("fs", "cat", "{id}", "/tmp/e/{name}/x"),
        ("cp", "{id}:/tmp/e/{name}/x", "{scratch}"),
    ],
    ids=["ls", "find", "procs", "error", "cp-error"],
)
def test_control_characters_on_a_terminal(cay, box, scratch, command):
    sandbox = box()
    name = "\x1b]0;owned\x07"
    script = "import os, sys\nos.makedirs('/tmp/e')\nopen('/tmp/e/' + sys.argv[1], 'w').close()"
    assert sandbox.exec("python3", "-c", script, name).returncode == 0
    assert name in os.fsdecode(
        cay.run("fs", "ls", "--json", sandbox.id, "/tmp/e").stdout.encode().decode("unicode_escape")
    )
    screen, terminal = pty.openpty()
    words = [w.format(id=sandbox.id, name=name, scratch=scratch) for w in command]
    process = subprocess.Popen(
        [cay.program, *words], env=cay.env, stdin=terminal, stdout=terminal, stderr=terminal
    )
    process.wait(timeout=20)
    os.set_blocking(screen, False)
    shown = os.read(screen, 65536)
    os.close(screen)
    os.close(terminal)
    assert b"\x1b" not in shown, shown


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
