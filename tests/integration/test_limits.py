# SPDX-License-Identifier: Apache-2.0
"""Resource caps: each is kept, is felt inside, and is shown by stats."""
import json
import os
import pathlib
import subprocess
import time

import pytest

from integration.support import background, info, refused, state, until

HOG = "x = bytearray({n} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('fits')"


def stats(cay, box):
    return cay.json("stats", "--json", box)


def loops(cay):
    """Loop devices whose file was below this engine's directories."""
    found = []
    for path in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        text = path.read_text()
        if str(cay.top) in text:
            found.append(text)
    return found


# ---- memory

def test_memory_is_limited(cay, make):
    """Who dies of it, and what lives on: test_oom.py."""
    box = make("--memory", "64M")
    assert cay.run("exec", box, "--", "python3", "-c", HOG.format(n=20)).stdout == "fits\n"
    done = cay.run("exec", "--json", box, "--", "python3", "-c", HOG.format(n=200), timeout=60)
    assert done.returncode == 137 and json.loads(done.stdout)["oom"], done
    assert stats(cay, box)["memory_peak"] <= 64 << 20


def test_memory_of_others_is_not_touched(cay, make):
    other = make("--memory", "128M")
    number = background(cay, other, "exec sleep 1000")
    cay.run("run", "--memory", "32M", "--", "python3", "-c", HOG.format(n=100), timeout=60)
    assert cay.run("wait", "--timeout", "0", other, number).returncode == 124


def test_files_in_memory_count(cay, make):
    box = make("--memory", "64M", "--disk", "32M")
    cay.run("exec", box, "-c", "head -c 200M /dev/zero > /dev/shm/x", timeout=60)
    assert state(cay, box) == "running" and 30 << 20 <= stats(cay, box)["memory"] <= 64 << 20


def test_meminfo_tells_the_limit(cay, make):
    box = make("--memory", "300M")
    total = int(cay.run("exec", box, "--", "awk", "/MemTotal/ {print $2}", "/proc/meminfo").stdout)
    assert total == 300 << 10


# ---- processes

def test_pids(cay, make):
    box = make("--pids", "20")
    done = cay.run("exec", box, "-c", "for i in $(seq 60); do sleep 5 & done; echo reached; kill $(jobs -p)", timeout=60)
    assert "fork" in done.stderr.lower() or "resource" in done.stderr.lower(), done
    assert stats(cay, box)["pids_max"] == 20
    until(lambda: cay.run("exec", box, "--", "true").returncode == 0, 10)


def test_fork_bomb_ends_with_its_exec(cay, make):
    box = make("--pids", "100")
    number = background(cay, box, "f() { f | f & }; f; sleep 1000")
    until(lambda: stats(cay, box)["pids"] >= 50, 20)
    cay.run("signal", "--tree", box, number, "KILL", check=True)
    until(lambda: stats(cay, box)["pids"] <= 2, 10)
    assert cay.sh(box, "echo up").stdout == "up\n"


# ---- cpu

@pytest.mark.parametrize("cpus,low,high", [("0.2", 0.08, 0.45), ("0.5", 0.2, 0.85)])
def test_cpus(cay, make, cpus, low, high):
    box = make("--cpus", cpus)
    background(cay, box, "while :; do :; done")
    background(cay, box, "while :; do :; done")
    time.sleep(0.2)
    start, before = time.monotonic(), stats(cay, box)["cpu_us"]
    time.sleep(1.2)
    used = (stats(cay, box)["cpu_us"] - before) / 1e6 / (time.monotonic() - start)
    # a loaded machine gives less, never more
    assert used < high, used
    assert used > low or os.getloadavg()[0] > 4, used


# ---- disk

@pytest.mark.parametrize("options", [("--disk", "16M"), ("--disk", "96M", "--memory", "128M")], ids=["memory", "loop"])
def test_disk_bytes(cay, make, options):
    box = make(*options)
    limit = int(options[1][:-1]) << 20
    done = cay.run("exec", box, "-c", f"head -c {limit * 2} /dev/zero > /var/tmp/big; echo $?")
    assert "No space left" in done.stderr and done.stdout == "1\n", done
    seen = stats(cay, box)
    assert limit * 0.8 <= seen["disk_max"] <= limit
    assert seen["disk"] >= seen["disk_max"] * 0.85
    cay.sh(box, "rm /var/tmp/big; echo fine > /var/tmp/x && cat /var/tmp/x", check=True)
    assert until(lambda: stats(cay, box)["disk"] < limit / 2, 5)
    assert state(cay, box) == "running"


def test_disk_counts_the_whole_root(cay, make):
    box = make("--disk", "16M")
    done = cay.run("exec", box, "-c", "for d in /usr/local /etc /opt /root /home/user /tmp /var/lib; do "
                   "head -c 5M /dev/zero > $d/fill || echo full $d; done")
    assert done.stdout.count("full") >= 3


@pytest.mark.parametrize("options", [(), ("--memory", "64M", "--disk", "64M")], ids=["memory", "loop"])
def test_inodes(cay, make, options):
    box = make("--inodes", "300", *options)
    done = cay.run("exec", box, "-c", "mkdir /tmp/i; i=0; while [ $i -lt 2000 ]; do : > /tmp/i/$i || break; i=$((i+1)); done; "
                   "ls /tmp/i | wc -l")
    assert 100 < int(done.stdout) < 400, done
    assert stats(cay, box)["inodes_max"] <= 400


def test_large_disk_is_a_loop_image_that_leaves_no_device(fresh):
    before = loops(fresh)
    box = fresh.create("--memory", "128M", "--disk", "400M")
    done = fresh.run("exec", box, "-c", "head -c 300M /dev/zero > /var/tmp/x && sync && stat -c %s /var/tmp/x", timeout=120)
    assert done.stdout == f"{300 << 20}\n", done.stderr
    assert fresh.json("stats", "--json", box)["memory"] <= 128 << 20
    assert state(fresh, box) == "running", "more than its memory on its disk"
    fresh.run("rm", "-f", box, check=True)
    until(lambda: loops(fresh) == before, 5)
    box = fresh.create("--memory", "128M", "--disk", "400M")
    os.kill(info(fresh, box)["keeper_pid"], 9)
    until(lambda: loops(fresh) == before, 5)


def test_host_disk_does_not_hold_the_image_by_name(fresh):
    fresh.create("--memory", "128M", "--disk", "400M")
    files = [p for top in (fresh.run_dir, fresh.state / "sandboxes") for p in top.rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 1 << 20, files


# ---- open files, output

def test_fds(cay, make):
    box = make("--fds", "64")
    script = "import os\nn = 0\ntry:\n    while True: os.open('/dev/null', 0); n += 1\nexcept OSError as e: print(n, e.strerror)"
    count, why = cay.run("exec", box, "--", "python3", "-c", script).stdout.split(" ", 1)
    assert 40 < int(count) < 64 and why == "Too many open files\n"
    assert cay.run("exec", box, "-c", "ulimit -n; ulimit -Hn").stdout == "64\n64\n"


def test_output_flood_is_bounded_on_the_host(cay, make):
    box = make("--output", "1M")
    number = background(cay, box, "yes flood")
    keeper = info(cay, box)["keeper_pid"]
    until(lambda: cay.json("procs", "--json", box)[0]["output_end"] > 30 << 20, 30)
    held = 0
    for fd in pathlib.Path(f"/proc/{keeper}/fd").iterdir():
        try:
            st = os.stat(fd)
        except OSError:
            continue
        held += st.st_blocks * 512
    assert held < 16 << 20, held
    assert cay.sh(box, "echo neighbours").stdout == "neighbours\n"
    cay.run("signal", box, number, "KILL", check=True)


def test_stats_of_all_and_of_one(cay, make):
    box = make("--memory", "200M", "--pids", "33")
    cay.run("exec", box, "-c", "head -c 1M /dev/zero > /tmp/x", check=True)
    one = stats(cay, box)
    assert (one["memory_max"], one["pids_max"], one["oom_kills"]) == (200 << 20, 33, 0)
    assert one["cpu_us"] > 0 and 0 < one["memory"] <= one["memory_peak"] <= 200 << 20 and one["disk"] >= 1 << 20
    assert box in [s["id"] for s in cay.json("stats", "--json")]
    table = cay.run("stats", box).stdout
    assert "200M" in table and "/33" in table


@pytest.mark.parametrize("options,word", [
    (("--memory", "1K"), "memory"), (("--pids", "1"), "pids"), (("--disk", "1K"), "disk"), (("--fds", "2"), "fds"),
    (("--output", "1"), "output"), (("--inodes", "1"), "inodes"), (("--memory", "2000000T"), "memory"),
    (("--cpus", "100000"), "cpus"),
])
def test_limits_out_of_range(cay, options, word):
    refused(cay.run("create", *options), word)


def inherited(cay, *limits):
    """What a sandbox that was made under these limits has: {"address space": "unlimited", ...}, soft limits."""
    argv = ["prlimit", *limits, cay.program, "run", "--", "cat", "/proc/self/limits"]
    done = subprocess.run(argv, env=cay.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    names = {line[4:26].strip(): line[26:].split()[0] for line in done.stdout.splitlines()[1:]}
    return {name: names[name] for name in ("address space", "file size", "cpu time", "stack size", "open files")}


def test_soft_limits_of_the_caller_do_not_count(cay):
    plain = inherited(cay, "--core=0:")
    assert plain["open files"] == "4096" and plain["stack size"] == str(8 << 20), plain
    soft = ["--as=1073741824:", "--fsize=65536:", "--cpu=100:", "--stack=1048576:", "--nofile=64:"]
    assert inherited(cay, *soft) == plain


def test_hard_limits_of_the_caller_hold(cay):
    """They are the operator's."""
    found = inherited(cay, "--fsize=65536:1000000", "--cpu=1000:2000", "--nofile=64:300", "--stack=1048576:2097152")
    assert found["file size"] == "1000000" and found["cpu time"] == "2000", found
    assert found["open files"] == "300" and found["stack size"] == "2097152", found


def test_a_keeper_without_descriptors_says_so(fresh):
    """Further commands are refused with the limit that is reached, and those that run go on."""
    argv = ["prlimit", "--nofile=80:80", fresh.program, "create", "--name", "few"]
    subprocess.run(argv, env=fresh.env, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    started, refusals = [], []
    for _ in range(40):
        done = fresh.run("exec", "-d", "few", "--", "sleep", "1000")
        (started if done.returncode == 0 else refusals).append(done)
    assert started and refusals, (len(started), len(refusals))
    assert all("ulimit -n" in done.stderr for done in refusals), refusals[0].stderr
    assert len([p for p in fresh.json("procs", "few", "--json") if p["running"]]) == len(started)


@pytest.mark.parametrize("limit", ["4096", "0"])
def test_a_hard_limit_on_file_sizes_is_named(fresh, limit):
    """Nothing can be made under it: an error that says what to raise, and nothing is left."""
    for command in (["create", "--name", "never"], ["run", "--", "true"]):
        argv = ["prlimit", f"--fsize={limit}:{limit}", fresh.program, *command]
        done = subprocess.run(argv, env=fresh.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        refused(done, "ulimit -f")
    assert fresh.run("ps", "-a", "-q", check=True).stdout == ""


def test_a_file_that_reaches_the_limit_of_the_caller(fresh, tmp_path):
    """Of the command line: the rest of a copy cannot be written, and it says so instead of dying of a signal."""
    fresh.create("--name", "box")
    fresh.run("exec", "box", "-c", "head -c 100000 /dev/zero > /tmp/f", check=True)
    argv = ["prlimit", "--fsize=50000:50000", fresh.program, "cp", "box:/tmp/f", tmp_path / "f"]
    done = subprocess.run(argv, env=fresh.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    refused(done, "ulimit -f")
