# SPDX-License-Identifier: Apache-2.0
"""Prepared sandboxes: made before it is known what for, then the same as any other.

tests/programs/prepared.c does what the daemon does: it prepares, waits, and gives away.
"""
import concurrent.futures
import contextlib
import os
import pathlib
import pwd
import re
import shutil
import signal
import subprocess
import time

import pytest

from integration.support import CGROUP, alive, host_pids, state, until
from lib.engine import BUILD
from lib.oracle import groups_of

DRIVER = BUILD / "lib" / "tests" / "unit" / "prepared"

pytestmark = pytest.mark.skipif(not DRIVER.exists(), reason="the library's part is not built")


class Refused(Exception):
    pass


class Driver:
    def __init__(self, engine, **popen):
        self.engine = engine
        self.process = subprocess.Popen([str(DRIVER)], env=engine.env, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, **popen)

    def __call__(self, *words):
        self.process.stdin.write("\t".join(map(str, words)) + "\t\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        kind, _, rest = self.process.stdout.readline().strip().partition(" ")
        if kind != "ok":
            raise Refused(rest)
        return rest

    def ready(self, *options):
        number = self("prepare", *options)
        self("wait", number)
        return number

    def claim(self, *options, like=(), word="claim"):
        """One that was prepared, and must not have been made from nothing; its id."""
        before = set(instances(self.engine))
        number = self.ready(*like)
        made = set(instances(self.engine)) - before
        identifier = self(word, number, *options).split()[0]
        assert made <= set(instances(self.engine)), "it was made from nothing"
        assert not any((self.engine.run_dir / name / "ctl").exists() for name in made)
        return identifier

    def close(self, how=None):
        if how:
            self.process.send_signal(how)
        else:
            self.process.stdin.close()
        self.process.wait(10)
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def driver(fresh):
    made = Driver(fresh)
    yield made
    if made.process.poll() is None:
        made.close()


def instances(engine):
    return [p.name for p in engine.run_dir.glob("pool~*")] if engine.run_dir.exists() else []


def groups():
    return {name for _, name in groups_of(CGROUP) if name.startswith("pool~")}


def ids(engine):
    return {os.readlink(p) for p in (engine.run_dir / "ids").iterdir()}


def keeper_of(name):
    return next(p for p in host_pids(name) if pathlib.Path(f"/proc/{p}/comm").read_text() == "cay-keeper\n")


def nothing_left(engine):
    """Of prepared ones, on the whole: directories, cgroups, ids, processes."""
    until(lambda: not instances(engine), 5)
    until(lambda: not groups(), 5)
    assert not {name for name in ids(engine) if name.startswith("pool~")}
    assert not [p for p in (engine.state / "sandboxes").iterdir() if p.name.startswith("pool~")]


def test_prepared_then_given_away(fresh, driver):
    identifier = driver.claim("--name", "box")
    assert identifier == "box"
    assert fresh.sh("box", "hostname; echo hello").stdout == "box\nhello\n"
    assert [e["id"] for e in fresh.json("ps", "-a", "--json")] == ["box"]
    fresh.run("kill", "box", check=True)
    assert state(fresh, "box") == "exited"
    nothing_left(fresh)


def test_it_outlives_who_made_it(fresh, driver):
    driver.claim("--name", "box")
    driver.ready()
    driver.close(signal.SIGKILL)
    until(lambda: len(instances(fresh)) == 1, 5)
    assert fresh.sh("box", "echo up").stdout == "up\n"
    assert state(fresh, "box") == "running"
    fresh.run("rm", "-f", "box", check=True)
    nothing_left(fresh)


@pytest.mark.parametrize("how", [None, signal.SIGTERM, signal.SIGKILL])
def test_gone_with_its_owner(fresh, driver, how):
    for _ in range(3):
        driver.ready()
    driver("prepare")  # one that is not ready yet
    driver.close(how)
    nothing_left(fresh)


def test_let_go(fresh, driver):
    number = driver.ready()
    assert len(instances(fresh)) == 1
    driver("free", number)
    nothing_left(fresh)


def test_ephemeral(fresh, driver):
    driver.claim("--name", "box", word="own")
    assert fresh.sh("box", "echo up").stdout == "up\n"
    driver.close(signal.SIGKILL)
    until(lambda: fresh.ids() == [], 5)
    nothing_left(fresh)


def test_never_listed_never_reached(fresh, driver):
    driver.ready()
    [name] = instances(fresh)
    assert fresh.json("ps", "-a", "--json") == []
    for words in (["inspect", name], ["stats", name], ["exec", name, "--", "true"], ["kill", name], ["rm", name]):
        done = fresh.run(*words)
        assert done.returncode == 125 and "no sandbox" in done.stderr, done
    with pytest.raises(Refused, match="not_found"):
        driver("dial", name)
    done = fresh.run("create", "--name", "pool~mine")
    assert done.returncode == 125 and "pool~" in done.stderr
    driver.claim("--name", "box")
    assert [e["id"] for e in fresh.json("ps", "-a", "--json")] == ["box"]
    assert instances(fresh)


def test_handed_out_once(fresh, driver):
    number = driver.ready()
    driver("claim", number, "--name", "one")
    driver("claim", number, "--name", "two")  # nothing there any more: from nothing
    fresh.sh("one", "echo secret > /tmp/mine", check=True)
    assert fresh.sh("two", "cat /tmp/mine").returncode != 0
    assert len(instances(fresh)) == 1


def test_the_same_id_again(fresh, driver):
    assert driver("claim", driver.ready(), "--name", "box", "--label", "a=1") == "box new"
    assert driver("claim", driver.ready(), "--name", "box", "--label", "a=1") == "box existed"
    with pytest.raises(Refused, match="conflict.*label"):
        driver("claim", driver.ready(), "--name", "box", "--label", "a=2")
    driver("claim", driver.ready(), "--name", "other")
    driver("claim", "-", "--name", "cold")
    assert driver("claim", driver.ready(), "--name", "cold") == "cold existed"
    until(lambda: len(instances(fresh)) == 2, 5)
    fresh.run("kill", "box", check=True)
    with pytest.raises(Refused, match="conflict.*ended"):
        driver("claim", driver.ready(), "--name", "box", "--label", "a=1")


# ---- everything that is bound late -----------------------------------------------------------------------

def test_limits(fresh, driver):
    driver.claim("--name", "box", "--memory", "96M", "--pids", "20", "--disk", "8M", "--inodes", "500",
                 "--output", "5000")
    out = fresh.sh("box", "head -1 /proc/meminfo; df -B1 --output=size / | tail -1; "
                          "df --output=itotal / | tail -1").stdout.split()
    assert out == ["MemTotal:", str(96 * 1024), "kB", str(8 << 20), "500"]
    stats = fresh.json("stats", "--json", "box")
    stats = stats[0] if isinstance(stats, list) else stats
    assert (stats["memory_max"], stats["pids_max"]) == (96 << 20, 20), stats
    assert "No space" in fresh.sh("box", "head -c 9000000 /dev/zero > /tmp/x").stderr
    fresh.sh("box", "rm /tmp/x", check=True)
    assert fresh.sh("box", "for i in $(seq 30); do sleep 1 & done; wait").returncode != 0


def test_out_of_memory(fresh, driver):
    driver.claim("--name", "box", "--memory", "96M")
    assert fresh.sh("box", "head -c 300m /dev/zero | tail", timeout=30).returncode == 137
    assert state(fresh, "box") == "running" and fresh.sh("box", "echo on").stdout == "on\n"


def test_more_memory_than_prepared_for(fresh, driver):
    driver.claim("--name", "box", "--memory", "300M", like=("--memory", "64M"))
    assert fresh.sh("box", "head -1 /proc/meminfo").stdout.split()[1] == str(300 << 10)
    assert fresh.sh("box", "head -c 100m /dev/zero | tail | wc -c").stdout == f"{100 << 20}\n"


def test_cpus(fresh, driver):
    with pytest.raises(AssertionError, match="from nothing"):
        driver.claim("--name", "cold", "--cpus", "1")
    driver.claim("--name", "box", "--cpus", "1", like=("--cpus", "2"))
    assert fresh.sh("box", "grep -c ^processor /proc/cpuinfo").stdout == "1\n"
    places = [pathlib.Path(path) for path, name in groups_of(CGROUP) if name.startswith("pool~")]
    quotas = [p.read_text() for g in places for p in g.glob("cpu.cfs_quota_us")] or \
             [p.read_text().split()[0] for g in places for p in g.glob("cpu.max")]
    assert [int(q) for q in quotas] == [100000]


def test_words_and_lists(fresh, driver):
    driver.claim("--name", "acme~box", "--env", "A=1", "--env", "B=two words", "--label", "team=x", "--user",
                 "nobody", "--workdir", "/tmp", "--ttl", "1h")
    out = fresh.sh("acme~box", "echo $A $B; id -un; pwd; hostname").stdout.splitlines()
    assert out == ["1 two words", "nobody", "/tmp", "box"]
    assert [e["id"] for e in fresh.json("ps", "--json", "--label", "team=x")] == ["acme~box"]
    assert '"ttl_ms":3600000' in fresh.run("inspect", "acme~box").stdout.replace(" ", "")


def test_ttl_and_idle(fresh, driver):
    driver.claim("--name", "short", "--ttl", "300ms")
    driver.claim("--name", "idle", "--idle", "300ms")
    until(lambda: state(fresh, "short") == "ttl", 5)
    until(lambda: state(fresh, "idle") == "idle", 5)
    nothing_left(fresh)


@pytest.mark.skipif(os.geteuid() != 0, reason="root")
def test_mounts(fresh, driver):
    nobody = pwd.getpwnam("nobody")
    source = fresh.top / "data"
    (source / "below").mkdir(parents=True)
    (source / "file").write_text("text\n")
    for path in (source, source / "below", source / "file"):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    options = ("--name", "box", "-v", f"{source}:/data", "-v", f"{source}/below:/data/deep/er:ro", "-v",
               f"{source}/file:/etc/some/file:ro")
    driver.claim(*options)
    done = fresh.sh("box", "cat /data/file /etc/some/file; echo new > /data/new; stat -c %U /data/file; "
                           "touch /data/deep/er/x; grep -c nosuid,nodev /proc/self/mountinfo; "
                           "umount /data 2>&1; mount -o remount,rw,bind /data/deep/er 2>&1")
    assert done.stdout.startswith("text\ntext\nroot\n"), done
    assert "Read-only" in done.stderr
    made = source / "new"
    assert made.read_text() == "new\n" and made.stat().st_uid == nobody.pw_uid
    cold = fresh.create("--name", "cold", *options[2:])
    look = "sed 's/^[0-9]* [0-9]* //' /proc/self/mountinfo | grep -e /data -e /etc/some | sort"
    clean = [re.sub(r"^\S+ ", "", line) for line in fresh.sh("box", look).stdout.splitlines()]
    assert clean == [re.sub(r"^\S+ ", "", line) for line in fresh.sh(cold, look).stdout.splitlines()]
    assert len(clean) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="root")
def test_mounts_of_the_system(fresh, driver):
    source = fresh.top / "roots"
    source.mkdir()
    options = ("-v", f"{source}:/data")
    assert driver("key", *options) != driver("key")
    driver.claim("--name", "box", *options, like=options)
    assert fresh.sh("box", "cp /bin/true /data/x && chmod 4755 /data/x").returncode != 0
    assert (source / "x").stat().st_mode & 0o6000 == 0
    driver("claim", driver.ready(), "--name", "cold", *options)
    assert fresh.sh("cold", "chmod 4755 /data/x").returncode != 0


def test_a_mount_that_is_not_there(fresh, driver):
    with pytest.raises(Refused, match="not_found.*/nowhere"):
        driver("claim", driver.ready(), "--name", "box", "-v", "/nowhere:/data")
    nothing_left(fresh)
    assert fresh.ids() == []


def test_what_does_not_fit_is_made_from_nothing(fresh, driver, tmp_path):
    for n, options in enumerate([["--profile", "strict"], ["--fds", "100"], ["--cpus", "1"],
                                 ["--image", f"dir:{tmp_path}"]]):
        assert driver("key", *options) != driver("key")
        if options[0] == "--image":
            continue
        assert driver("claim", driver.ready(), "--name", f"box{n}", *options) == f"box{n} new"
        assert fresh.sh(f"box{n}", "echo up").stdout == "up\n"
    for options in (["--memory", "64M"], ["--env", "A=1"], ["--ttl", "5s"], ["--pids", "9"], ["--user", "nobody"]):
        assert driver("key", *options) == driver("key")
    nothing_left(fresh)


@pytest.mark.parametrize("profile", ["default", "strict", "nested"])
def test_confined_as_any_other(fresh, driver, profile):
    """What a process inside sees of its own confinement is the same, however the sandbox was made."""
    driver.claim("--name", "box", "--profile", profile, like=("--profile", profile))
    fresh.create("--name", "cold", "--profile", profile)
    look = ("grep -e ^Cap -e ^NoNew -e ^Seccomp -e Groups -e ^Uid /proc/self/status; ulimit -a; cat /proc/self/cgroup;"
            "cat /proc/sys/user/max_user_namespaces; sed 's/^[0-9]* [0-9]* [0-9:]* //' /proc/self/mountinfo;"
            "ls -la /proc/self/fd | sed 's/.*:..//' | sed 's/[0-9][0-9]*//g'; ls / /dev /sys;"
            "unshare -U true 2>&1; cat /proc/1/status 2>&1 | grep -e Seccomp -e Cap -e FDSize; hostname x 2>&1")
    hide = re.compile(r"upperdir=\S+|lowerdir=\S+|size=\S+|uid=\d+|gid=\d+|master:\d+|shared:\d+|box|cold")
    one, two = (hide.sub("", fresh.sh(i, look).stdout) for i in ("box", "cold"))
    assert one == two and "Seccomp:" in one


# ---- crashes ---------------------------------------------------------------------------------------------

def test_keeper_killed_while_parked(fresh, driver):
    first, second = driver.ready(), None
    [name] = instances(fresh)
    os.kill(keeper_of(name), signal.SIGKILL)
    until(lambda: not host_pids(name), 5)
    assert driver("claim", first, "--name", "box") == "box new"
    assert fresh.sh("box", "hostname").stdout == "box\n"
    assert fresh.json("ps", "--json")[0]["id"] == "box"
    nothing_left(fresh)
    second = driver.ready()
    [name] = instances(fresh)
    os.kill(keeper_of(name), signal.SIGKILL)
    with pytest.raises(Refused, match="died"):
        time.sleep(0.2)
        driver("wait", second)
    fresh.ids()
    nothing_left(fresh)


@pytest.mark.parametrize("how", ["lives", "killed"])
def test_rm_of_one_that_was_given_away_and_has_no_run_directory(fresh, driver, how):
    """Its cgroups have the name that it was prepared under, and are found by its record."""
    driver.claim("--name", "box")
    [name] = instances(fresh)
    keeper = keeper_of(name)
    if how == "killed":
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not alive(keeper), 5)
    shutil.rmtree(fresh.run_dir)
    assert groups()
    fresh.run("rm", "-f", "box", check=True)
    assert not groups()
    until(lambda: not alive(keeper), 5)


@pytest.mark.parametrize("first", ["list", "real", "instance"])
def test_keeper_killed_after_it_was_given_away(fresh, driver, first):
    driver.claim("--name", "box")
    [name] = instances(fresh)
    init = next(e for e in fresh.json("ps", "--json"))["init_pid"]
    keeper = keeper_of(name)
    assert groups() == {g for g in groups() if g.startswith(name)} and groups()
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(keeper) and not alive(init), 5)
    if first == "real":
        assert fresh.run("exec", "box", "--", "true").returncode == 125
    elif first == "instance":
        driver.close()
        other = Driver(fresh)  # any look at the instance will do
        with pytest.raises(Refused):
            other("dial", "box")
        other.close()
    assert state(fresh, "box") == "lost"
    nothing_left(fresh)
    fresh.run("rm", "box", check=True)


def test_all_killed_at_once(fresh, driver):
    for n in range(3):
        driver.ready()
        driver.claim("--name", f"box{n}")
    keepers = [keeper_of(name) for name in instances(fresh)]
    assert len(keepers) == 6
    for pid in [driver.process.pid, *keepers]:
        with contextlib.suppress(ProcessLookupError):  # keepers of prepared ones end with their creator
            os.kill(pid, signal.SIGKILL)
    driver.close(signal.SIGKILL)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:  # sweepers get in each other's way
        list(pool.map(lambda n: fresh.run("ps", "-a") if n % 2 else fresh.run("exec", f"box{n // 2}", "--", "true"),
                      range(6)))
    until(lambda: all(state(fresh, f"box{n}") == "lost" for n in range(3)), 5)
    nothing_left(fresh)


def test_init_killed_while_parked(fresh, driver):
    number = driver.ready()
    [name] = instances(fresh)
    keeper = keeper_of(name)
    [init] = pathlib.Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(int(init), signal.SIGKILL)
    nothing_left(fresh)
    assert driver("claim", number, "--name", "box") == "box new"


def test_a_parked_keeper_costs_nothing(fresh, driver):
    driver.ready()
    [name] = instances(fresh)
    stat = pathlib.Path(f"/proc/{keeper_of(name)}/stat")

    def ticks():
        return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    before = ticks()
    time.sleep(1)
    assert ticks() - before <= 1


def test_fifty_at_once(fresh):
    drivers = [Driver(fresh) for _ in range(10)]
    try:
        def work(n):
            d = drivers[n]
            numbers = [d("prepare") for _ in range(5)]
            for number in numbers:
                d("wait", number)
            return [d("claim", number, "--name", f"b{n}-{number}", "--env", f"N={n}-{number}").split()[0]
                    for number in numbers]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            made = [i for some in pool.map(work, range(10)) for i in some]
        assert len(set(made)) == 50 and set(fresh.ids()) == set(made)
        assert len(instances(fresh)) == 50
        for identifier in made:
            assert fresh.sh(identifier, "echo $N; hostname").stdout == f"{identifier[1:]}\n{identifier}\n"
        fresh.run("rm", "-f", *made, check=True, timeout=120)
        nothing_left(fresh)
    finally:
        for d in drivers:
            d.close()
