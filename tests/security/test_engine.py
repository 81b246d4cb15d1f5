# SPDX-License-Identifier: Apache-2.0
"""The engine's own processes, attacks of more than one step: descriptors, working directory, mount targets
of hostile images, loaders, and the moment when a worker enters."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import time

import pytest

from lib.engine import PROG
from security import harness, images

# -- descriptors


@pytest.mark.attack("descriptor-leak", "engine", "a descriptor that a process inherits")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
@pytest.mark.parametrize(
    "options",
    [(), ("-i",), ("-t",), ("-u", "1000"), ("-w", "/tmp"), ("--timeout", "30")],
    ids=["plain", "stdin", "terminal", "user", "directory", "timeout"],
)
def test_descriptors_of_an_exec(places, sandboxes, options, profile):
    hole = os.open("/", os.O_RDONLY)
    places["host"].run("fds", pass_fds=[hole]).must_win()
    os.close(hole)
    if profile == "strict" and "-u" in options:
        options = ("-u", "0")  # a sandbox without capabilities has no other user
    sandboxes(profile).run("fds", options=options).must_be_refused()


@pytest.mark.attack("descriptor-leak-run", "engine", "a descriptor of the caller that `run` inherits")
def test_descriptors_of_a_run(cay, places, probe_dir, scratch):
    """The caller of cay has a directory of the host open without close-on-exec."""
    hole = os.open(scratch, os.O_RDONLY)
    places["host"].run("fds", pass_fds=[hole]).must_win()
    done = cay.run("run", "-v", f"{probe_dir}:/probe:ro", "--", "/probe/probe", "fds", pass_fds=[hole])
    os.close(hole)
    harness.verdict(done).must_be_refused()


@pytest.mark.attack(
    "descriptor-leak-first-create", "engine", "a descriptor of the creator kept by keeper or init"
)
def test_descriptors_of_keeper_and_init(cay, box, scratch):
    """A keeper outlives its creator: it must not hold what the creator had open."""
    hole = os.open(scratch, os.O_RDONLY)
    identifier = cay.run("create", pass_fds=[hole], check=True).stdout.strip()
    try:
        assert str(scratch) in os.readlink(f"/proc/self/fd/{hole}")  # the control: this is how it would look
        cay.run("exec", "-d", identifier, "--", "sleep", "8112233", check=True)
        pid = harness.wait_for(lambda: harness.find_process("8112233"), 10, "the process")
        for each in (*harness.init_of(pid), pid):
            links = [os.readlink(f"/proc/{each}/fd/{n}") for n in os.listdir(f"/proc/{each}/fd")]
            assert not [link for link in links if link.startswith(str(scratch))], (each, links)
    finally:
        os.close(hole)
        cay.run("rm", "-f", identifier)


@pytest.mark.attack("init-holds-host-directory", "engine", "a host directory that init holds open")
def test_init_holds_no_directory_of_the_host(sandboxes):
    """What init has open is what an escape by init would start from."""
    pid = sandboxes().host_pid()
    init, _ = harness.init_of(pid)
    assert held_directories(os.getpid())  # the control: this test holds its own working directory
    for each in (pid, init):
        for path, kind in held_directories(each, with_cwd=False):
            # a cgroup of its own to put processes in is part of the design, if nothing lies above it
            assert kind.startswith("cgroup"), (each, path, kind)
            assert os.path.samefile(path, path + "/.."), f"{path} has a way up"


def held_directories(pid, with_cwd=True):
    paths = [f"/proc/{pid}/fd/{n}" for n in os.listdir(f"/proc/{pid}/fd")] + [f"/proc/{pid}/cwd"] * with_cwd
    kinds = {
        p: harness.run_host(["stat", "-f", "-c", "%T", p + "/."]).stdout.strip()
        for p in paths
        if os.path.isdir(p)
    }
    return list(kinds.items())


# -- working directory (CVE-2024-21626)


@pytest.mark.attack("working-directory-outside", "engine", "a working directory outside of the root")
@pytest.mark.parametrize("profile", ["default", "nested"])
def test_working_directory_through_descriptors(sandboxes, probe_dir, scratch, profile):
    jail = scratch / "jail"
    (jail / "proc").mkdir(parents=True)
    shutil.copy(probe_dir / "probe", jail / "probe")
    # the control: a chroot entered with a working directory outside of it
    control = subprocess.run(
        ["/probe", "cwd-outside"],
        cwd="/",
        preexec_fn=lambda: os.chroot(jail),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    harness.verdict(control).must_win()
    box = sandboxes(profile)
    paths = [f"/proc/self/fd/{n}" for n in range(3, 24)]
    paths += [
        "/proc/1/cwd",
        "/proc/1/root",
        "/proc/self/fd/3/../../..",
        "/proc/1/fd/4",
        "../../../..",
        "/proc/self/cwd/..",
    ]
    for path in paths:
        done = box.exec(harness.IN_SANDBOX, "cwd-outside", options=("-w", path))
        assert harness.verdict(done).kind != harness.WON, (path, done.stdout)
        if harness.verdict(done).kind == harness.UNTRIED:
            assert done.returncode in (125, 126) and done.stderr.count("\n") == 1, (path, done.stderr)


# -- the moment of entry (CVE-2019-5736, CVE-2016-9962)


def digests():
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in PROG.glob("cay*") if p.is_file()}


@pytest.mark.attack("worker-caught-at-entry", "engine", "a worker between its entry and its exec")
@pytest.mark.attack(
    "worker-executable-overwritten", "engine", "the executable of a process that runs /proc/self/exe"
)
@pytest.mark.parametrize("profile", ["default", "nested"])
@pytest.mark.parametrize("how", ["all", "exe"])
def test_hunt_for_workers(cay, box, profile, how):
    """`exe`: the sandbox makes the engine run itself; that copy is the sandbox's, its file is not."""
    sandbox = box("--profile", profile)
    sandbox.run("hunt", "5", how, "plant").must_win()
    before = digests()
    sandbox.must("printf '#!/proc/self/exe\\n' > /tmp/evil; chmod 755 /tmp/evil")
    hunter = cay.popen("exec", sandbox.id, "--", "/probe/probe", "hunt", "8", how, text=True)
    end = time.monotonic() + 7
    while time.monotonic() < end:
        if how == "exe":
            sandbox.exec("/tmp/evil", timeout=20)
            sandbox.exec("/proc/self/exe", timeout=20)
        cay.run("fs", "ls", sandbox.id, "/tmp")
        cay.run("exec", "-u", "1000", sandbox.id, "--", "true")
    out, err = hunter.communicate(timeout=30)
    harness.verdict(subprocess.CompletedProcess([], hunter.returncode, out, err)).must_be_refused()
    assert digests() == before


# -- hostile images: the places where the engine mounts are links (CVE-2021-30465 and its kin)

PLACES = [
    "proc",
    "dev",
    "sys",
    "tmp",
    "run",
    "etc",
    "dev/shm",
    "dev/pts",
    "etc/hosts",
    "etc/resolv.conf",
    "etc/hostname",
    "proc/sys",
    "var",
]


def mounts_below(path):
    with open("/proc/self/mountinfo") as f:
        return [line for line in f if str(path) in line.split()[4]]


def tree(path):
    """Everything below a directory, with contents: what must stay the same."""
    found = {}
    for top, folders, files in os.walk(path):
        for name in folders + files:
            full = os.path.join(top, name)
            info = os.lstat(full)
            text = harness.read_bytes(full) if os.path.isfile(full) and not os.path.islink(full) else ""
            found[full] = (info.st_mode, info.st_uid, info.st_gid, text)
    return found


@pytest.mark.attack("mount-target-link-*", "engine", "a mount target of the image that is a link to the host")
@pytest.mark.parametrize("style", ["absolute", "relative"])
@pytest.mark.parametrize("place", PLACES)
def test_mount_target_is_a_link(cay, probe_dir, scratch, place, style):
    victim = scratch / "victim"
    victim.mkdir()
    (victim / "file").write_text("host\n")
    aim = victim / "file" if place.startswith("etc/") else victim
    root = images.make(scratch / "image", probe_dir, without=(place,))
    up = "../" * 30
    (root / place).symlink_to(aim if style == "absolute" else up + str(aim).lstrip("/"))
    # the control: whoever mounts by path follows the link out of the image
    kind = ["--bind", "/etc/hostname"] if aim.is_file() else ["-t", "tmpfs", "none"]
    control = harness.run_host(
        [*harness.UNSHARE, "sh", "-c", 'mount "$@" && cat /proc/self/mountinfo', "sh", *kind, root / place]
    )
    assert str(aim) in control.stdout, control.stderr
    before = tree(victim), tree(root)
    done = cay.run("run", "--image", f"dir:{root}", "--", "/bin/probe", "status-lacks", "Seccomp", "0")
    assert (tree(victim), tree(root)) == before
    assert mounts_below(victim) == []
    # refused in one clear line, or made inside without following
    assert done.returncode in (0, 1) or (done.returncode == 125 and done.stderr.count("\n") == 1), done


BIND_TARGETS = [
    ("link", "/link"),
    ("below-a-link", "/link/new/dir"),
    ("dots", "/mnt/../../../../{victim}/new"),
    ("file-below-a-link", "/link/file"),
    ("through-proc", "/proc/1/root/{victim}/new"),
    ("proc-itself", "/proc"),
    ("root-itself", "/"),
    ("dev-itself", "/dev"),
]


@pytest.mark.attack("bind-target-*", "engine", "the target of a bind mount that leads to the host")
@pytest.mark.parametrize("target", [row[1] for row in BIND_TARGETS], ids=[row[0] for row in BIND_TARGETS])
def test_bind_target_leads_out(cay, probe_dir, scratch, target):
    victim = scratch / "victim"
    victim.mkdir()
    (victim / "file").write_text("host\n")
    source = scratch / "source"
    source.mkdir()
    root = images.make(scratch / "image", probe_dir)
    (root / "link").symlink_to(victim)
    assert (root / "link" / "file").read_text() == "host\n"  # the control: by path the link leads out
    before = tree(victim), tree(root)
    done = cay.run(
        "run",
        "--image",
        f"dir:{root}",
        "-v",
        f"{source}:{target.format(victim=str(victim).lstrip('/'))}",
        "--",
        "/bin/probe",
        "read",
        "/link/file",
        "host",
    )
    assert (tree(victim), tree(root)) == before
    assert mounts_below(victim) == []
    assert done.returncode == 1 or (done.returncode in (125, 126, 127) and done.stderr), done


# -- loaders and name services (CVE-2019-14271)

LIBRARY = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void)
{
    char name[4096];
    ssize_t n = readlink("/proc/self/exe", name, sizeof(name) - 1);
    int fd = open(HOST_FILE, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd >= 0 && write(fd, "host\n", 5) == 5)
        close(fd);
    fd = open("/tmp/loaded", O_WRONLY | O_CREAT | O_APPEND, 0666);
    name[n > 0 ? n : 0] = '\n';
    if (fd >= 0 && write(fd, name, strlen("x") * (size_t)(n > 0 ? n + 1 : 1)) > 0)
        close(fd);
}
"""


def build_library(folder, name, host_file):
    source = folder / "library.c"
    source.write_text(LIBRARY)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f'-DHOST_FILE="{host_file}"', "-o", folder / name, source], check=True
    )
    return folder / name


class Watch:
    """inotify on files: has a process of the host opened one of them?"""

    def __init__(self, paths):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.paths = {
            self.libc.inotify_add_watch(self.fd, str(p).encode(), 0x20): p for p in paths
        }  # IN_OPEN

    def seen(self):
        try:
            return len(os.read(self.fd, 65536)) > 0
        except BlockingIOError:
            return False


@pytest.mark.attack("name-service-of-the-image", "engine", "a library of the image loaded on the host")
def test_no_host_process_opens_the_libraries_of_an_image(cay, probe_dir, scratch):
    host_file = scratch / "loaded-on-the-host"
    library = build_library(scratch, "evil.so", host_file)
    root = images.make(scratch / "image", probe_dir)
    planted = []
    for folder in ("lib", "lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name in ("libnss_files.so.2", "libnss_evil.so.2", "libc.so.6"):
            shutil.copy(library, root / folder / name)
            planted.append(root / folder / name)
    (root / "etc/nsswitch.conf").write_text("passwd: evil\ngroup: evil\n")
    (root / "etc/ld.so.preload").write_text("/lib/libnss_evil.so.2\n")
    planted += [root / "etc/nsswitch.conf", root / "etc/ld.so.preload"]
    watch = Watch(planted)
    # the control: the watch sees an open, and the library does act when it is loaded
    planted[0].read_bytes()
    assert watch.seen()
    subprocess.run(["true"], env={"LD_PRELOAD": str(library)}, check=True)
    assert host_file.read_text() == "host\n"
    host_file.unlink()
    watch.seen()
    for user in ("evil", "1000", "root", "nobody-at-all"):
        cay.run("run", "--image", f"dir:{root}", "-u", user, "--", "/bin/probe", "fds")
    assert not watch.seen()
    assert not host_file.exists()


@pytest.mark.attack(
    "loader-variables-reach-the-engine", "engine", "LD_PRELOAD of an exec in an engine process"
)
def test_environment_of_an_exec_reaches_no_engine_process(cay, box, scratch):
    host_file = scratch / "loaded-on-the-host"
    build_library(scratch, "evil.so", host_file)
    sandbox = box("-v", f"{scratch}:/evil:ro", "-e", "LD_PRELOAD=/evil/evil.so")
    sandbox.exec("/usr/bin/id", options=("-e", "LD_PRELOAD=/evil/evil.so"))
    cay.run("fs", "ls", sandbox.id, "/tmp")
    cay.run("cp", f"{sandbox.id}:/tmp", scratch / "out")
    loaded = cay.run("fs", "cat", sandbox.id, "/tmp/loaded").stdout.split("\n")
    assert "/usr/bin/id" in loaded  # the control: the library was loaded, by the command alone
    assert set(loaded) == {"/usr/bin/id", ""}
    assert not host_file.exists()


# -- control and configuration


@pytest.mark.attack(
    "control-socket-from-inside", "engine", "the control socket of the own keeper or a neighbour's"
)
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_control_socket_is_not_inside(cay, places, sandboxes, profile):
    box = sandboxes(profile)
    path = cay.run_dir / box.id / "ctl"
    places["host"].run("unix-connect", path).must_win()
    box.run("unix-connect", path).must_be_refused()
    box.run("unix-connect", "/run/cay/ctl").must_be_refused()
    box.run("find", "ctl", "/run").must_be_refused()
    listening = box.must("cat /proc/net/unix")
    assert "ctl" not in listening and "cay" not in listening, listening


@pytest.mark.attack("image-as-configuration", "engine", "options of the engine taken from the image")
def test_configuration_in_an_image_is_only_data(cay, probe_dir, scratch):
    root = images.make(scratch / "image", probe_dir)
    text = "image.tricked = host\nalias tricked host\n[images]\ntricked = host\n"
    for name in ("etc/cay/cay.conf", "cay.conf", ".cay.conf", "root/.config/cay/cay.conf", "config.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    done = cay.run("run", "--image", f"dir:{root}", "--", "/bin/probe", "caps", "0", cwd=root)
    harness.verdict(done).must_win()  # the control: the image itself works
    refused = cay.run("run", "--image", "tricked", "--", "/bin/probe", "fds", cwd=root)
    assert refused.returncode == 125 and "tricked" in refused.stderr


# -- without cgroups: what a command starts is known by its warden, and by nothing else

ESCAPE = """
(setsid sh -c 'sleep 98601; true' &)
(setsid setsid sleep 98602 &)
sleep 0.2
{deed}
sleep 98603
"""


def sleepers():
    return [n for n in (98601, 98602, 98603) if harness.find_process(str(n))]


@pytest.mark.attack("warden-killed", "engine", "a command that kills what its timeout would kill it by")
def test_a_command_kills_its_warden(rootless):
    done = harness.as_user(rootless, "create", "--name", "warden")
    assert done.returncode == 0, done
    if harness.as_user(rootless, "exec", "warden", "--", "sh", "-c", "echo $PPID").stdout == "1\n":
        pytest.skip("this host has cgroups for ordinary users")
    other = harness.as_user(rootless, "exec", "-d", "warden", "--", "sh", "-c", "(setsid sleep 98604 &) ; sleep 98605").stdout
    # the control: they are there, and stay as long as the command
    number = harness.as_user(rootless, "exec", "-d", "warden", "--", "sh", "-c", ESCAPE.format(deed="true")).stdout.strip()
    harness.wait_for(lambda: len(sleepers()) == 3, 10, "what the command has started")
    harness.as_user(rootless, "exec", "warden", "--", "sh", "-c", f"kill -9 $(sed -n 's/^PPid:.//p' /proc/{number}/status)")
    harness.wait_for(lambda: not sleepers(), 10, "all of it to be killed")
    done = harness.as_user(rootless, "exec", "--timeout", "30s", "warden", "--", "sh", "-c",
                           ESCAPE.format(deed="kill -9 $PPID"))
    assert done.returncode == 137, done
    harness.wait_for(lambda: not sleepers(), 10, "all of it to be killed")
    # what others have started lives on
    assert other and harness.find_process("98604") and harness.find_process("98605")
    harness.as_user(rootless, "rm", "-f", "warden")
