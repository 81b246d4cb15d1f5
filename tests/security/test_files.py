# SPDX-License-Identifier: Apache-2.0
"""Files: the file API led out of the sandbox, mounts, host secrets, hostile trees, blocking files."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import pytest

from security import harness, images
from security.conftest import Marker


def host_path(sandbox, path):
    """The path of a file inside as a careless host program would take it: links in it lead to the host."""
    init, _ = harness.init_of(sandbox.host_pid())
    return pathlib.Path(f"/proc/{init}/root{path}")


# -- the file API follows nothing out

LINKS = {
    "absolute-link": "ln -s {marker} /tmp/t/l",
    "relative-chain": "ln -s ../../../../../../../../../..{marker} /tmp/t/l",
    "directory-link": "ln -s {folder} /tmp/t/dir; ln -s dir/{name} /tmp/t/l",
    "link-to-link": "ln -s {marker} /tmp/t/k; ln -s k /tmp/t/l",
    "root-of-init": "ln -s /proc/1/root{marker} /tmp/t/l",
    "root-of-self": "ln -s /proc/self/root/../..{marker} /tmp/t/l",
    "cwd-of-self": "ln -s /proc/self/cwd{marker} /tmp/t/l",
}


@pytest.fixture
def trap(box, marker):
    """A sandbox with a link to a file of the host in it, and the proof that the link leads there."""

    def make(kind):
        sandbox = box()
        script = LINKS[kind].format(marker=marker.path, folder=marker.path.parent, name=marker.path.name)
        sandbox.must(f"mkdir -p /tmp/t; {script}")
        return sandbox

    return make


def led_out(sandbox, marker):
    """The control: opened by a host process, or put together as text, the planted link is the host's file."""
    link = host_path(sandbox, "/tmp/t/l")
    text = os.readlink(link)
    path = os.path.normpath(link.parent / text) if text.startswith("..") else link
    return pathlib.Path(path).read_text() == marker.text + "\n"


@pytest.mark.attack("file-api-read-*", "files", "reading a host file through a planted link")
@pytest.mark.parametrize("kind", LINKS)
def test_read_through_a_link(cay, trap, marker, kind):
    sandbox = trap(kind)
    if "of-" not in kind:  # the links through /proc mean something else to each process
        assert led_out(sandbox, marker)
    else:
        assert sandbox.must("cat /proc/1/root/etc/passwd || cat /proc/self/root/etc/passwd")
    for command in (
        ("fs", "cat", sandbox.id, "/tmp/t/l"),
        ("fs", "grep", sandbox.id, marker.text[:8], "/tmp/t"),
        ("fs", "grep", sandbox.id, "/tmp/t", marker.text[:8]),
        ("fs", "cat", sandbox.id, f"/tmp/t/../..{marker.path}"),
        ("fs", "cat", sandbox.id, f"../../../../..{marker.path}"),
        ("fs", "cat", sandbox.id, f"/proc/1/root{marker.path}"),
    ):
        done = cay.run(*command, timeout=20)
        # grep may repeat what it was asked for in an error; the whole text it was never told
        assert marker.text not in done.stdout + done.stderr, command


@pytest.mark.attack("file-api-copy-out", "files", "copying a host file out through a planted link")
@pytest.mark.parametrize("kind", LINKS)
def test_copy_out_through_a_link(cay, trap, marker, scratch, kind):
    sandbox = trap(kind)
    if "of-" not in kind:
        assert led_out(sandbox, marker)
    cay.run("cp", f"{sandbox.id}:/tmp/t/l", scratch / "one", timeout=20)
    cay.run("cp", f"{sandbox.id}:/tmp/t", scratch / "tree", timeout=20)
    for path in [scratch / "one", *(scratch / "tree").rglob("*")]:
        if not path.is_symlink() and path.is_file():
            assert marker.text not in path.read_text(errors="replace")


WRITES = {
    "put": ("fs", "put", "{id}", "/tmp/t/l"),
    "put-below": ("fs", "put", "{id}", "/tmp/t/dir/new"),
    "mkdir": ("fs", "mkdir", "{id}", "/tmp/t/dir/new"),
    "rm": ("fs", "rm", "{id}", "/tmp/t/dir/{name}"),
    "rm-recursive": ("fs", "rm", "-r", "{id}", "/tmp/t/dir"),
    "mv-out": ("fs", "mv", "{id}", "/tmp/t/dir/{name}", "/tmp/t/mine"),
    "mv-in": ("fs", "mv", "{id}", "/tmp/t/own", "/tmp/t/dir/new"),
    "cp-in": ("cp", "{scratch}/upload", "{id}:/tmp/t/dir/new"),
    "cp-in-over-the-link": ("cp", "{scratch}/upload", "{id}:/tmp/t/l"),
    "cp-tree-in": ("cp", "{scratch}/folder", "{id}:/tmp/t/dir"),
    "put-dots": ("fs", "put", "{id}", "/tmp/../../../../../..{folder}/new"),
}


@pytest.mark.attack("file-api-write-*", "files", "changing a host file through a planted link")
@pytest.mark.parametrize("kind", WRITES)
def test_write_through_a_link(cay, trap, workshop, scratch, kind):
    victim = scratch / "victim"
    victim.mkdir()
    marker = Marker(victim)
    (scratch / "upload").write_text("overwritten\n")
    (scratch / "folder").mkdir()
    (scratch / "folder/new").write_text("overwritten\n")
    sandbox = trap("absolute-link")
    sandbox.must(
        "rm -r /tmp/t; mkdir /tmp/t; echo own > /tmp/t/own; "
        f"ln -s {victim} /tmp/t/dir; ln -s {marker.path} /tmp/t/l"
    )
    assert (
        host_path(sandbox, f"/tmp/t/dir/{marker.path.name}").read_text() == marker.text + "\n"
    )  # the control
    words = [
        w.format(id=sandbox.id, name=marker.path.name, scratch=scratch, folder=victim) for w in WRITES[kind]
    ]
    cay.run(*words, input="overwritten\n", timeout=20)
    assert marker.untouched()
    assert os.listdir(victim) == [marker.path.name]


# -- races: a path that changes between two looks


@pytest.mark.attack("path-race-*", "files", "a directory exchanged for a link while the file API works on it")
@pytest.mark.parametrize("what", ["put", "cat", "rm", "cp-in", "cp-out", "mkdir"])
def test_path_race(cay, box, scratch, what):
    victim = scratch / "victim"
    victim.mkdir()
    (victim / "secret").write_text("host secret\n")
    (scratch / "upload").write_text("overwritten\n")
    sandbox = box()
    sandbox.must("mkdir -p /tmp/race/d; echo inside > /tmp/race/d/secret")
    sandbox.background("/probe/probe", "flip", "/tmp/race", victim, "40")
    race = host_path(sandbox, "/tmp/race")
    assert lost_race(race / "d"), "the control: look first, then open, and the link is followed to the host"
    commands = {
        "put": ("fs", "put", sandbox.id, "/tmp/race/d/new"),
        "cat": ("fs", "cat", sandbox.id, "/tmp/race/d/secret"),
        "rm": ("fs", "rm", sandbox.id, "/tmp/race/d/secret"),
        "mkdir": ("fs", "mkdir", sandbox.id, "/tmp/race/d/made/deep"),
        "cp-in": ("cp", scratch / "upload", f"{sandbox.id}:/tmp/race/d/new"),
        "cp-out": ("cp", f"{sandbox.id}:/tmp/race", scratch / "out"),
    }
    end = time.monotonic() + 6
    rounds = 0
    while time.monotonic() < end:
        done = cay.run(*commands[what], input="overwritten\n", timeout=20)
        assert "host secret" not in done.stdout
        rounds += 1
    assert rounds >= 20
    assert os.listdir(victim) == ["secret"] and (victim / "secret").read_text() == "host secret\n"
    for path in (scratch / "out").rglob("*") if (scratch / "out").exists() else []:
        if path.is_file() and not path.is_symlink() and victim not in path.resolve().parents:
            assert "host secret" not in path.read_text()


def lost_race(path, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if not path.is_symlink() and (path / "secret").read_text() == "host secret\n":
                return True
        except OSError:
            pass
    return False


# -- copying a hostile tree to the host


@pytest.mark.attack("copy-out-two-steps", "files", "a link left by one copy and written through by the next")
def test_copy_out_twice_through_a_link(cay, box, scratch):
    victim = scratch / "victim"
    victim.mkdir()
    sandbox = box()
    sandbox.must(f"mkdir /tmp/tree; ln -s {victim} /tmp/tree/a; ln -s {victim}/file /tmp/tree/f")
    cay.run("cp", f"{sandbox.id}:/tmp/tree", scratch / "out")
    sandbox.must(
        "rm /tmp/tree/a /tmp/tree/f; mkdir /tmp/tree/a; echo evil > /tmp/tree/a/planted; echo evil > /tmp/tree/f"
    )
    # the control: an extractor that trusts what is there follows the link that the first copy left
    naive = scratch / "naive"
    naive.mkdir()
    (naive / "a").symlink_to(victim)
    (naive / "a" / "control").write_text("followed")
    assert (victim / "control").read_text() == "followed"
    (victim / "control").unlink()
    cay.run("cp", f"{sandbox.id}:/tmp/tree", scratch / "out")
    cay.run("cp", f"{sandbox.id}:/tmp/tree/.", scratch / "out/tree")
    cay.run("cp", f"{sandbox.id}:/tmp/tree/a", scratch / "out")
    cay.run("cp", f"{sandbox.id}:/tmp/tree/f", scratch / "out/f")
    assert os.listdir(victim) == []


@pytest.mark.attack("copy-out-special-files", "files", "devices, set-uid bits and pipes copied to the host")
def test_copy_out_special_files(cay, box, scratch):
    sandbox = box()
    sandbox.must(
        "mkdir /tmp/tree; mkfifo /tmp/tree/pipe; echo x > /tmp/tree/plain; "
        "cp /bin/true /tmp/tree/suid; chmod 6755 /tmp/tree/suid"
    )
    assert sandbox.must("stat -c %a /tmp/tree/suid").strip() == "6755"  # the control: it is set-uid inside
    cay.run("cp", f"{sandbox.id}:/tmp/tree", scratch / "out", timeout=20)
    copied = list((scratch / "out").rglob("plain"))
    assert copied and copied[0].read_text() == "x\n"
    for path in (scratch / "out").rglob("*"):
        mode = path.lstat().st_mode
        assert not mode & 0o6000, f"{path} is set-uid or set-gid on the host"


@pytest.mark.attack(
    "copy-in-follows-links", "files", "a host file taken along through a link in a copied tree"
)
def test_copy_in_does_not_follow_links(cay, box, scratch, marker):
    tree = scratch / "project"
    tree.mkdir()
    (tree / "innocent").symlink_to(marker.path)
    assert (tree / "innocent").read_text() == marker.text + "\n"  # the control: followed, it gives the secret
    sandbox = box()
    cay.run("cp", tree, f"{sandbox.id}:/tmp/project", check=True)
    done = sandbox.sh(
        "find /tmp/project -type f -exec cat {} +; cat /tmp/project/innocent; ls -lR /tmp/project"
    )
    assert "innocent" in done.stdout and marker.text not in done.stdout.replace(str(marker.path), "")


# -- files that block


@pytest.mark.attack("blocking-file-*", "files", "a pipe or device that blocks the file API")
@pytest.mark.parametrize(
    "path", ["/tmp/b/pipe", "/dev/tty", "/dev/ptmx", "/dev/zero", "/dev/random", "/tmp/b/socket"]
)
def test_blocking_file(cay, box, scratch, path):
    os.mkfifo(scratch / "pipe")
    with pytest.raises(subprocess.TimeoutExpired):  # the control: a plain open waits for ever
        subprocess.run(["cat", scratch / "pipe"], timeout=1)
    sandbox = box()
    sandbox.must(
        "mkdir /tmp/b; mkfifo /tmp/b/pipe; echo x > /tmp/b/plain; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/tmp/b/socket')\""
    )
    start = time.monotonic()
    for command in (("fs", "cat", sandbox.id, path), ("cp", f"{sandbox.id}:{path}", scratch / "copy")):
        done = cay.run(*command, timeout=10)
        assert done.returncode != 0 and not done.stdout, command
    for command in (
        ("fs", "put", sandbox.id, "/tmp/b/pipe2"),
        ("fs", "stat", sandbox.id, path),
        ("fs", "ls", sandbox.id, "/tmp/b"),
        ("fs", "find", sandbox.id, "/tmp/b"),
        ("cp", f"{sandbox.id}:/tmp/b", scratch / "tree"),
    ):
        cay.run(*command, input="x", timeout=10)
    assert time.monotonic() - start < 20
    assert [p for p in (scratch / "tree").rglob("plain")]
    assert sandbox.alive()


@pytest.mark.attack("partial-write", "files", "a half-written file left by a caller that dies")
def test_caller_killed_during_a_write(cay, box, scratch):
    naive = scratch / "naive"
    naive.write_text("old")
    with open(naive, "w"):  # the control: an ordinary write destroys the old content at once
        assert naive.read_text() == ""
    sandbox = box()
    cay.run("fs", "put", sandbox.id, "/tmp/file", input="old", check=True)
    writer = cay.popen("fs", "put", sandbox.id, "/tmp/file")
    writer.stdin.write(b"new" * 100000)
    writer.stdin.flush()
    time.sleep(0.5)
    assert cay.run("fs", "cat", sandbox.id, "/tmp/file").stdout == "old"
    writer.kill()
    writer.wait()
    time.sleep(0.5)
    assert cay.run("fs", "cat", sandbox.id, "/tmp/file").stdout == "old"
    assert sandbox.must("ls -A /tmp | grep -v '^loaded$'").split() == ["file"]


# -- mounts


@pytest.fixture
def shared(scratch):
    """A host directory to mount, beside a secret of the host."""
    (scratch / "secret").write_text("host secret\n")
    folder = scratch / "shared"
    folder.mkdir()
    (folder / "file").write_text("mine\n")
    (folder / "out").symlink_to(scratch / "secret")
    (folder / "up").symlink_to("../secret")
    return folder


@pytest.mark.attack("mount-read-only-lifted", "files", "writing to a read-only mount")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_read_only_mount(box, shared, profile):
    os.chown(shared, 12345, 12345)  # nested takes no writable mount of the system's
    sandbox = box("--profile", profile, "-v", f"{shared}:/ro:ro", "-v", f"{shared}:/rw")
    sandbox.run("write", "/rw/control", "x").must_win()  # the same directory, writable
    for attack in (
        ("write", "/ro/file", "x"),
        ("write", "/ro/new", "x"),
        ("mount", "remount-rw", "/ro"),
        ("mount-api", "mount_setattr", "/ro"),
        ("umount", "/ro"),
        ("link", "/ro/file", "/ro/hard"),
    ):
        sandbox.run(*attack).must_be_refused()
    assert (shared / "file").read_text() == "mine\n"


@pytest.mark.attack("mount-left-upwards", "files", "leaving a mount by `..` or by links in it")
@pytest.mark.parametrize(
    "path", ["/rw/..{parent}/secret", "/rw/../secret", "/rw/out", "/rw/up", "/rw/../../..{parent}/secret"]
)
def test_leaving_a_mount(cay, box, shared, path):
    sandbox = box("-v", f"{shared}:/rw")
    path = path.format(parent=shared.parent)
    assert (
        (shared / "out").read_text() == (shared / "up").read_text() == "host secret\n"
    )  # the control: on the host they lead there
    sandbox.run("read", path, "host secret").must_be_refused()
    assert "host secret" not in cay.run("fs", "cat", sandbox.id, path).stdout


@pytest.mark.attack("mount-hard-link", "files", "a hard link between a mount and the rest")
def test_hard_link_across_a_mount(places, box, shared):
    places["host"].run("link", shared / "file", shared.parent / "hard").must_win()
    box("-v", f"{shared}:/rw").run("link", "/rw/file", "/tmp/hard").must_be_refused()


@pytest.mark.attack(
    "mount-set-uid-gift", "files", "a set-uid root program left in a writable mount for users of the host"
)
@pytest.mark.parametrize("how", ["suid", "caps"])
def test_set_uid_program_left_on_the_host(places, box, scratch, how):
    """The directory is root's and writable inside: what is left there must not carry root's powers outside."""
    scratch.chmod(0o755)
    gifts = scratch / "gifts"
    gifts.mkdir()
    places["host"].run("plant", gifts / "control", how).must_win()
    harness.verdict(harness.run_host([*harness.NOBODY, gifts / "control", "powers"])).must_win()
    sandbox = box("-v", f"{gifts}:/gifts")
    sandbox.run("plant", "/gifts/gift", how)
    if (gifts / "gift").exists():
        done = harness.run_host([*harness.NOBODY, gifts / "gift", "powers"])
        assert (
            harness.verdict(done).kind != harness.WON
        ), f"{done.stdout} {oct((gifts / 'gift').stat().st_mode)}"


@pytest.mark.attack(
    "mount-source-swapped", "files", "a mount source exchanged for a link after it was resolved"
)
def test_mount_source_is_resolved_once(box, scratch):
    (scratch / "good").mkdir()
    (scratch / "good/name").write_text("good\n")
    (scratch / "bad").mkdir()
    (scratch / "bad/name").write_text("bad\n")
    link = scratch / "link"
    link.symlink_to("good")
    sandbox = box("-v", f"{link}:/m")
    link.unlink()
    link.symlink_to("bad")
    assert (link / "name").read_text() == "bad\n"  # the control: the name now means another directory
    assert sandbox.must("cat /m/name") == "good\n"


# -- images


@pytest.mark.attack("image-path-swapped", "files", "an image path exchanged for a link to the host's root")
def test_image_is_resolved_once(box, probe_dir, scratch, marker):
    images.make(scratch / "real", probe_dir)
    link = scratch / "image"
    link.symlink_to("real")
    sandbox = box("--image", f"dir:{link}")
    link.unlink()
    link.symlink_to("/")
    assert pathlib.Path(f"{link}{marker.path}").exists()  # the control: the name now means the host
    sandbox.run("read", str(marker.path)).must_be_refused()
    harness.verdict(sandbox.exec("/bin/probe", "read", "/etc/passwd", "evil")).must_win()


@pytest.mark.attack("image-written", "files", "writing to an image that others share")
def test_image_is_not_written(box, places, probe_dir, scratch):
    root = images.make(scratch / "image", probe_dir)
    first, second = box("--image", f"dir:{root}"), box("--image", f"dir:{root}")
    first.run("write", "/etc/passwd", "hacked").must_win()
    first.run("read", "/etc/passwd", "hacked").must_win()  # the control: inside it did change
    second.run("read", "/etc/passwd", "hacked").must_be_refused()
    assert (root / "etc/passwd").read_text() == images.PASSWD


@pytest.mark.attack("host-program-replaced", "files", "a program of the host replaced through the host image")
def test_host_image_is_not_written(box):
    first, second = box(), box()
    before = pathlib.Path("/usr/bin/env").read_bytes()
    first.must("cp /bin/true /usr/bin/env.new && mv /usr/bin/env.new /usr/bin/env && rm /usr/bin/yes")
    assert first.sh("env echo hello").stdout == ""  # the control: inside it is replaced
    assert second.sh("env echo hello").stdout == "hello\n"
    assert pathlib.Path("/usr/bin/env").read_bytes() == before and pathlib.Path("/usr/bin/yes").exists()


# -- secrets of the host

SECRET_PLACES = [
    "/root",
    "/home",
    "/var/tmp",
    "/var/lib",
    "/tmp",
    "/etc",
    "/srv",
    "/opt",
    "/mnt",
    "/run",
]


@pytest.mark.attack("host-file-seen-*", "files", "a file of the host in the host image")
@pytest.mark.parametrize("folder", [p for p in SECRET_PLACES if os.path.isdir(p)])
def test_host_file_is_not_in_the_host_image(box, places, folder):
    marker = Marker(pathlib.Path(folder))
    try:
        places["host"].run("find", marker.path.name, folder).must_win()
        sandbox = box()
        sandbox.run("find", marker.path.name).must_be_refused()
        sandbox.run("read", marker.path).must_be_refused()
    finally:
        marker.path.unlink()


# not the package database: it says what is in /usr, which the host image shows, and apt needs it
SECRETS = [
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/machine-id",
    "/etc/ssh/ssh_host_ed25519_key",
    "/var/log/dpkg.log",
    "/var/log/lastlog",
    "/root/.profile",
    "/root/.bashrc",
    "/etc/apt/sources.list",
]


@pytest.mark.attack("host-secret-*", "files", "the host's passwords, keys, logs and machine identity")
@pytest.mark.parametrize("path", [p for p in SECRETS if os.path.isfile(p) and os.path.getsize(p) > 8])
def test_secret_of_the_host(sandboxes, places, path):
    line = max(pathlib.Path(path).read_text(errors="replace").split("\n"), key=len)[:200]
    places["host"].run("read", path, line[:60]).must_win()
    assert line not in sandboxes().sh(f"cat {path}").stdout


@pytest.fixture
def local_tree():
    """A directory below /usr/local, and one deep below it."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="cay-attack-", dir="/usr/local/share"))
    top.chmod(0o755)
    deep = top.joinpath(*[f"level{n}" for n in range(20)])
    deep.mkdir(parents=True)
    yield top, deep
    shutil.rmtree(top)


@pytest.mark.attack("host-root-only-file", "files", "a file below /usr/local that only the host's root may read")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
@pytest.mark.parametrize("where", [0, 1], ids=["near", "deep"])
def test_root_only_file_below_usr_local(box, places, local_tree, where, profile):
    """There before the sandbox, made later, and made private later: the kernel refuses it in all cases."""
    early, late, closed = (Marker(local_tree[where]) for _ in range(3))
    early.path.chmod(0o600)
    late.path.unlink()
    sandbox = box("--profile", profile)
    sandbox.run("read", closed.path, closed.text).must_win()  # the control: what everybody may read is shown
    late.path.write_text(late.text)
    for marker in (late, closed):
        marker.path.chmod(0o600)
    for marker in (early, late, closed):
        places["host"].run("read", marker.path, marker.text).must_win()
        places["nobody"].run("read", marker.path, marker.text).must_be_refused()
        sandbox.run("read", marker.path, marker.text).must_be_refused()
        # nor by having it copied into the sandbox's own layer
        sandbox.sh(f"chmod 644 {marker.path}; chown 0:0 {marker.path}; ln {marker.path} /usr/local/x; "
                   f"mv {marker.path} /usr/local/y; setfattr -n user.x -v x {marker.path}")
        for path in (marker.path, "/usr/local/x", "/usr/local/y"):
            assert marker.text not in sandbox.sh(f"cat {path}").stdout


@pytest.mark.attack("host-root-only-directory", "files", "a directory below /usr/local that becomes private")
def test_root_only_directory_below_usr_local(box, places, local_tree):
    marker = Marker(local_tree[1])
    folder = local_tree[0] / "level0"
    sandbox = box()
    sandbox.run("read", marker.path, marker.text).must_win()
    folder.chmod(0o700)
    other = box()
    places["nobody"].run("read", marker.path, marker.text).must_be_refused()
    for one in (sandbox, other):
        assert one.sh(f"ls {folder}").returncode != 0
    other.run("read", marker.path, marker.text).must_be_refused()


def test_usr_local_can_be_changed(cay, box, local_tree):
    """As before, but for changes of a host's file in place: a new one takes its place."""
    top, deep = local_tree
    (top / "program").write_text("#!/bin/sh\necho of the host\n")
    (top / "program").chmod(0o755)
    (deep / "data").write_text("data\n")
    sandbox = box()
    assert sandbox.must(f"{top}/program") == "of the host\n"
    sandbox.must(f"""set -e
echo x > /usr/local/bin/new; echo x > {top}/new; mkdir -p /usr/local/lib/python3/dist-packages/new; rm {deep}/data
cp {top}/program /tmp/program; rm {top}/program; sed s/host/sandbox/ /tmp/program > {top}/program
chmod +x {top}/program; rm -r {top}/level0; mkdir {top}/level0; rmdir {top}/level0""")
    assert sandbox.must(f"{top}/program") == "of the sandbox\n"
    assert (deep / "data").exists() and "host" in (top / "program").read_text()
    assert not os.path.exists("/usr/local/bin/new") and not (top / "new").exists()


@pytest.mark.attack("environment-of-the-caller", "files", "the caller's environment inside")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_environment_of_the_caller(cay, probe_dir, places, profile):
    word = f"caller-secret-{time.monotonic_ns()}"
    control = places["host"].run("environ-has", word, env={"API_KEY": word})
    control.must_win()
    done = cay.run(
        "run",
        "--profile",
        profile,
        "-v",
        f"{probe_dir}:/probe:ro",
        "--",
        "/probe/probe",
        "environ-has",
        word,
        env={"API_KEY": word},
    )
    # the probe's own arguments are not its environment
    harness.verdict(done).must_be_refused()
    done = cay.run(
        "run", "--", "/bin/sh", "-c", "env; set; cat /proc/*/environ /proc/*/cmdline", env={"API_KEY": word}
    )
    assert word not in done.stdout


@pytest.mark.attack("neighbour-file", "files", "a file of another sandbox")
@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/var/tmp", "/root", "/run"])
def test_file_of_a_neighbour(box, folder):
    first, second = box(), box()
    first.must(f"mkdir -p {folder}; echo secret > {folder}/neighbour-mark")
    first.run("find", "neighbour-mark").must_win()
    second.run("find", "neighbour-mark").must_be_refused()


@pytest.mark.attack("state-directory", "files", "the engine's own state inside")
def test_state_directory_is_not_inside(cay, sandboxes, places):
    box = sandboxes()
    places["host"].run("find", box.id, cay.top).must_win()
    box.run("find", box.id).must_be_refused()
    box.run("find", cay.top.name).must_be_refused()


@pytest.fixture
def in_reach():
    """A directory of root's that others of the host can get at; pytest's own is closed to them."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        yield pathlib.Path(path)


@pytest.mark.attack(
    "mount-set-uid-behind-a-user", "files", "a set-uid root program where only one user of the host can reach it"
)
def test_set_uid_in_a_mount_below_a_users_own_directory(box, in_reach):
    mine = in_reach / "mine"
    work = mine / "work"
    work.mkdir(parents=True)
    os.chown(mine, 12345, 12345)
    mine.chmod(0o700)
    (work / "control").write_text("x")
    (work / "control").chmod(0o4755)  # the control: root may do it there
    sandbox = box("-v", f"{work}:/work")
    sandbox.must("cp /bin/true /work/gift")
    sandbox.sh("chmod 4755 /work/gift; chmod 2755 /work/gift")
    assert not (work / "gift").stat().st_mode & 0o6000
    assert (work / "control").stat().st_mode & 0o4000


@pytest.mark.attack("mount-nested-capability", "files", "file capabilities from a namespace inside, in a mount of root's")
def test_nested_takes_no_writable_mount_of_the_system(cay, in_reach):
    assert cay.run("run", "--profile", "nested", "-v", f"{in_reach}:/w:ro", "--", "true").returncode == 0
    done = cay.run("run", "--profile", "nested", "-v", f"{in_reach}:/w", "--", "true")
    assert done.returncode == 125 and "nested" in done.stderr
