# SPDX-License-Identifier: Apache-2.0
"""Where the control groups of sandboxes are, and that none of them stays.

On hosts with v1 controllers the cpu group of a sandbox is BASE~<id> in the root of its hierarchy, unless somebody
made BASE there: then it is in that, as all other groups are.
"""
import itertools
import os
import pathlib
import shutil
import signal

import pytest

from integration.support import CGROUP, alive, info, state, until
from lib.oracle import cgroup_mounts, groups_of, read

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups beside those of the engine")

_serial = itertools.count()


@pytest.fixture
def base(cay):
    """For this test the engine has a base group that no other one has: its name. In the end nothing is below it."""
    before = cay.env["CAY_CGROUP"]
    name = cay.env["CAY_CGROUP"] = f"{CGROUP}-{next(_serial)}"
    yield name
    cay.run("rm", "-f", "one", "two", "box")
    cay.env["CAY_CGROUP"] = before
    for path in named(name):
        for each, _, _ in os.walk(path, topdown=False):
            os.rmdir(each)


@pytest.fixture
def cpu():
    """The root of the v1 hierarchy that has the cpu controller and no other that sandboxes use."""
    for line in read("/proc/self/mountinfo").splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup" and "cpu" in fields[-1].split(","):
            if not {"memory", "pids", "blkio"} & set(fields[-1].split(",")):
                return pathlib.Path(fields[4])
    return pytest.skip("no v1 hierarchy of the cpu controller")


def named(base):
    """The base groups, and those beside them."""
    found = [pathlib.Path(mount) / base for mount in cgroup_mounts()]
    found += [p for mount in cgroup_mounts() for p in pathlib.Path(mount).glob(f"{base}~*")]
    return [p for p in found if p.exists()]


def cpu_group(engine, box, cpu):
    """Of the sandbox's first process."""
    for line in read(f"/proc/{info(engine, box)['init_pid']}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return cpu / path.lstrip("/")
    raise AssertionError("not in a cpu hierarchy")


def lose(engine, box):
    """Its keeper dies, and cannot remove anything."""
    before = info(engine, box)
    os.kill(before["keeper_pid"], signal.SIGKILL)
    until(lambda: not alive(before["init_pid"]) and not alive(before["keeper_pid"]), 10)


def test_nothing_is_left_of_the_last_sandbox(cay, base):
    for name in ("one", "two"):
        cay.create("--name", name, "--cpus", "1")
    assert named(base) and groups_of(base), "this test can see groups"
    cay.run("rm", "-f", "one", check=True)
    assert cay.sh("two", "echo up").stdout == "up\n"
    cay.run("kill", "two", check=True)
    until(lambda: not named(base), 5)
    cay.run("run", "--", "true", check=True)
    until(lambda: not named(base), 5)


@pytest.mark.parametrize("limit", [(), ("--cpus", "2")], ids=["free", "limited"])
def test_the_cpu_group_is_in_the_root(cay, base, cpu, limit):
    cay.create("--name", "box", *limit)
    group = cpu_group(cay, "box", cpu)
    assert group.parent == cpu and group.name.startswith(f"{base}~box")
    assert (group / "cpu.shares").read_text() == "1024\n"
    assert (group / "cpu.cfs_quota_us").read_text() == ("200000\n" if limit else "-1\n")
    cay.run("rm", "-f", "box", check=True)
    until(lambda: not named(base), 5)


@pytest.mark.parametrize("other_bases", [False, True], ids=["alone", "with-the-others"])
def test_the_base_of_an_operator_is_used_and_stays(cay, base, cpu, other_bases):
    theirs = [pathlib.Path(m) / base for m in cgroup_mounts()] if other_bases else [cpu / base]
    for path in theirs:
        path.mkdir()
    cay.create("--name", "box")
    assert cpu_group(cay, "box", cpu).parent == cpu / base
    cay.run("rm", "-f", "box", check=True)
    until(lambda: sorted(named(base)) == sorted(theirs), 5)
    assert groups_of(base) == []


def test_an_operator_may_have_made_all_bases_but_that_of_cpu(cay, base, cpu):
    """Then the keeper has no other reason to write where only root may."""
    theirs = [pathlib.Path(m) / base for m in cgroup_mounts() if pathlib.Path(m) != cpu]
    for path in theirs:
        path.mkdir()
    cay.create("--name", "box")
    group = cpu_group(cay, "box", cpu)
    assert group.parent == cpu
    cay.run("kill", "box", check=True)
    until(lambda: not group.exists(), 5)
    assert sorted(named(base)) == sorted(theirs)


def test_the_base_that_an_older_version_left_goes(cay, base, cpu):
    (cpu / base).mkdir()
    os.setxattr(cpu / base, "trusted.cay", b"")
    cay.create("--name", "box")
    assert cpu_group(cay, "box", cpu).parent == cpu / base
    cay.run("rm", "-f", "box", check=True)
    until(lambda: not named(base), 5)


@pytest.mark.parametrize("where", ["root", "base", "base-made-later"])
@pytest.mark.parametrize("who", ["rm", "again"])
def test_the_groups_of_a_dead_keeper_are_swept(cay, base, cpu, where, who):
    theirs = [] if where == "root" else [cpu / base]
    if where == "base":
        theirs[0].mkdir()
    cay.create("--name", "box")
    group = cpu_group(cay, "box", cpu)
    assert group.parent == (cpu / base if where == "base" else cpu)
    lose(cay, "box")
    if where == "base-made-later":
        theirs[0].mkdir()
    assert group.exists()
    assert state(cay, "box") == "lost"
    cay.run("rm", "-f", "box", check=True)
    if who == "again":
        cay.create("--name", "box")
        cay.run("rm", "-f", "box", check=True)
    until(lambda: named(base) == theirs, 5)
    assert groups_of(base) == []


@pytest.mark.parametrize("made", ["later", "never"])
def test_groups_that_are_in_the_way_are_swept(fresh, base, cpu, made):
    """Of one with the same name of which nobody knows any more, wherever the next one will be."""
    fresh.env["CAY_CGROUP"] = base
    fresh.create("--name", "box")
    group = cpu_group(fresh, "box", cpu)
    lose(fresh, "box")
    shutil.rmtree(fresh.run_dir)
    shutil.rmtree(fresh.state / "sandboxes" / "box")
    assert group.exists()
    if made == "later":
        (cpu / base).mkdir()
    fresh.create("--name", "box")
    now = cpu_group(fresh, "box", cpu)
    assert now.parent == (cpu / base if made == "later" else cpu)
    assert group.exists() == (made == "never")
    fresh.run("rm", "-f", "box", check=True)
    until(lambda: named(base) == ([cpu / base] if made == "later" else []), 5)


def test_both_forms_at_once_are_swept(cay, base, cpu):
    cay.create("--name", "box")
    group = cpu_group(cay, "box", cpu)
    lose(cay, "box")
    inside = cpu / base / group.name[len(base) + 1:]
    inside.mkdir(parents=True)
    cay.run("rm", "-f", "box", check=True)
    until(lambda: named(base) == [cpu / base], 5)
    assert groups_of(base) == []
