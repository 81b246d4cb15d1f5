# SPDX-License-Identifier: Apache-2.0
"""What a sandbox learns of the host and of other sandboxes, or leaves for them, without a file in common."""

import os
import pathlib
import time

import pytest

from security import harness


@pytest.mark.attack("locks-of-neighbours", "engine", "the locks of all sandboxes in /proc/locks")
@pytest.mark.parametrize("profile", ["default", "strict"])
def test_locks_of_neighbours(cay, box, sandboxes, profile):
    """Each keeper holds a lock: their number and inodes tell of every sandbox of every tenant."""
    neighbour = box()
    inode = f":{os.stat(cay.run_dir / neighbour.id / 'status').st_ino} "
    assert inode in pathlib.Path("/proc/locks").read_text()  # the control: the host sees it
    assert sandboxes(profile).must("cat /proc/locks /proc/cgroups") == ""


CAP_SYS_RESOURCE = 24
TOUCH = """
import errno, os, sys
for path in sys.argv[1:]:
    try:
        os.utime(path)
        print("done")
    except OSError as e:
        print(errno.errorcode[e.errno])
"""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


@pytest.mark.attack("device-times", "engine", "times of the host's device nodes, which all sandboxes see")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_times_of_devices(sandboxes, profile):
    """A mark that one sandbox could leave and another read."""
    sandbox = sandboxes(profile)
    touched = sandbox.exec("python3", "-c", TOUCH, *[f"/dev/{name}" for name in DEVICES], "/tmp")
    assert touched.stdout.split() == [*["EROFS"] * len(DEVICES), "done"], touched  # /tmp is the control
    # and the devices work
    sandbox.must("echo x > /dev/null && echo x >> /dev/null && head -c 4 /dev/zero > /dev/null && head -c 4 /dev/urandom")
    assert sandbox.exec("sh", "-c", "echo typed > /dev/tty", options=("-t",)).stdout.strip() == "typed"
    assert sandbox.sh("echo x > /dev/full").returncode != 0


EXECUTABLE = """
import mmap
with open("/dev/zero", "r+b", buffering=0) as zero:
    mmap.mmap(zero.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)[0] = 195
"""


@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_memory_of_dev_zero_may_be_executable(sandboxes, profile):
    """Old runtimes make room for their code so."""
    done = sandboxes(profile).exec("python3", "-c", EXECUTABLE)
    assert done.returncode == 0, done


@pytest.mark.attack("oom-score", "exhaustion", "a sandbox that outlives the services of a host without memory")
@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_oom_score(sandboxes, profile):
    def score(pid):
        return int(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text())

    sandbox = sandboxes(profile)
    pid = sandbox.host_pid()
    init, keeper = harness.init_of(pid)
    assert score(keeper) == score("self") and score(pid) > score(init) >= score("self") + 500
    # Only CAP_SYS_RESOURCE, which this host's root may lack, makes that final; below our own it never goes.
    final = int(harness.status("self", "CapEff")[0], 16) >> CAP_SYS_RESOURCE & 1
    lowered = sandbox.sh("echo 0 > /proc/self/oom_score_adj")
    assert lowered.returncode != 0 or not final, lowered
    assert sandbox.sh(f"echo {score('self') - 1} > /proc/self/oom_score_adj").returncode != 0
    sandbox.must("echo 900 > /proc/self/oom_score_adj && grep -qx 900 /proc/self/oom_score_adj")  # the control


SESSIONS = """
import os, time
start, hold = os.pipe()
for _ in range(80):
    if os.fork() == 0:
        os.close(hold)
        os.setsid()
        os.read(start, 1)
        while True:
            pass
print("spinning", flush=True)
os.close(hold)
time.sleep(60)
"""
WORK = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"


@pytest.mark.attack("cpu-by-sessions", "exhaustion", "processor time by the number of sessions")
def test_many_sessions_are_one_share(cay, box):
    """Each session is a group of its own for the scheduler, unless the sandbox is one."""
    neighbour = box()
    neighbour.must("true")

    def seconds(*spec):
        hog = box(*spec)
        follower = cay.popen("exec", hog.id, "--", "python3", "-c", SESSIONS)
        assert follower.stdout.readline() == b"spinning\n"
        begin = time.monotonic()
        assert neighbour.exec("python3", "-c", WORK, timeout=120).returncode == 0
        took = time.monotonic() - begin
        hog.remove()
        follower.communicate(timeout=60)
        return took

    # the control: with a limit, which is no less than there is, it always was one
    assert seconds() < 3 * seconds("--cpus", os.cpu_count())
