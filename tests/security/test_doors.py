# SPDX-License-Identifier: Apache-2.0
"""The doors of docs/ISOLATION.md: what container escapes and kernel holes need, and who can get at it.

A door that is shut is a row of the attack table, tried in each profile and at its control by test_table.py; one that
is open in a profile is walked through here. The table of the page must say the same.
"""

import dataclasses
import re

import pytest

from lib.engine import ROOT
from security import attacks

PAGE = ROOT / "docs" / "ISOLATION.md"
PROFILES = ("strict", "default", "nested")
IN_NAMESPACE = "unshare -Urmn --propagation private"
OVERLAY = (
    "d=$(mktemp -d -p /dev/shm) && mount -t tmpfs x $d && mkdir $d/l $d/u $d/w $d/m && "
    "mount -t overlay x -o lowerdir=$d/l,upperdir=$d/u,workdir=$d/w $d/m"
)
SPLICE = "import os; r, w = os.pipe(); f = os.open('/etc/passwd', 0); assert os.splice(f, w, 1) == 1"
OOB = (
    "import socket; a, b = socket.socketpair(); a.send(b'x', socket.MSG_OOB); "
    "assert b.recv(1, socket.MSG_OOB) == b'x'"
)
TIMER = "import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 100); assert signal.getitimer(1)[0] > 0"


@dataclasses.dataclass(frozen=True)
class Door:
    attacks: tuple = ()  # rows of the attack table that try it where it is shut
    open: tuple = ()  # profiles where it is open
    script: str = ""  # walks through it there
    elsewhere: tuple = ()  # or attacks of more than one step: marks of test_engine.py


def python(code):
    return f'python3 -c "{code}"'


DOORS = {
    "user namespace": Door(("unshare-user", "clone-user", "clone3-user"), ("nested",), "unshare -U true"),
    "netfilter": Door(("socket-netlink-netfilter",)),
    "XFRM": Door(("socket-netlink-xfrm",)),
    "network administration": Door(("interface-added",), ("nested",), "unshare -Urn ip link set lo mtu 1400"),
    "mounting": Door(
        ("mount-tmpfs", "new-mount-api-fsopen"), ("nested",), f"{IN_NAMESPACE} mount -t tmpfs x /dev/shm"
    ),
    "overlay mount": Door(("mount-tmpfs", "new-mount-api-fsopen"), ("nested",), f"{IN_NAMESPACE} sh -c '{OVERLAY}'"),
    "cgroup mount": Door(
        ("mount-cgroup-v1-release-agent",), ("nested",), "unshare -UrmC mount -t cgroup2 x /mnt || unshare -UrmC mount -t cgroup -o pids x /mnt"
    ),
    "io_uring": Door(("io-uring",)),
    "bpf": Door(("bpf",)),
    "perf events": Door(("perf-event-of-every-process",)),
    "TCP upper layer": Door(("tcp-upper-layer-protocol",)),
    "packet socket": Door(("socket-packet",)),
    "vsock": Door(("socket-vsock",)),
    "line discipline": Door(("terminal-line-discipline", "terminal-line-discipline-high-bits")),
    "core_pattern": Door(("core-pattern-written",)),
    "runtime's program": Door(("init-executable-overwritten",)),
    "inherited descriptor": Door(elsewhere=("descriptor-leak", "working-directory-outside")),
    "runtime's mounts": Door(elsewhere=("mount-target-link-*", "bind-target-*")),
    "pipes": Door(open=PROFILES, script=python(SPLICE)),
    "memory mappings": Door(open=PROFILES, script="exec 3</etc/passwd; cat /proc/self/maps | grep -q stack"),
    "unix sockets": Door(open=PROFILES, script=python(OOB)),
    "timers": Door(open=PROFILES, script=python(TIMER)),
}
TABLE = {attack.id: attack for attack in attacks.TABLE}
SHUT = [(name, door_attack) for name, door in DOORS.items() for door_attack in door.attacks]
OPEN = [(name, profile) for name, door in DOORS.items() if door.script for profile in door.open]
ROW = re.compile(r"^\| CVE-[^|]*\|(?P<what>[^|]*)\|(?P<door>[^|]*)\|(?P<says>[^|]*\|[^|]*\|[^|]*)\|$")


def rows():
    return [found for line in PAGE.read_text().splitlines() if (found := ROW.match(line))]


@pytest.mark.parametrize("name,attack", SHUT)
def test_shut_doors_are_tried(name, attack):
    """By a row with a control, in every profile where it is said to be shut."""
    row = TABLE[attack]
    assert row.control
    shut = [profile for profile in PROFILES if profile not in DOORS[name].open]
    assert set(shut) <= set(row.profiles), (name, attack, row.profiles)


@pytest.mark.attack("door-open", "kernel", "a door that is said to be open, walked through")
@pytest.mark.parametrize("name,profile", OPEN)
def test_open_doors_are_open(sandboxes, name, profile):
    done = sandboxes(profile).sh(DOORS[name].script)
    assert done.returncode == 0, done.stderr


@pytest.mark.attack("door-shut-in-strict", "kernel", "doors of the nested profile, in the others")
@pytest.mark.parametrize("profile", ["strict", "default"])
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.open == ("nested",) and door.script])
def test_nested_doors_are_shut_elsewhere(sandboxes, name, profile):
    """The script is the one that test_open_doors_are_open sees at work."""
    assert sandboxes(profile).sh(DOORS[name].script).returncode != 0


def test_attacks_of_more_than_one_step_are_there():
    source = (ROOT / "tests" / "security" / "test_engine.py").read_text()
    wanted = [mark for door in DOORS.values() for mark in door.elsewhere]
    assert wanted and all(f'attack("{mark}"' in source for mark in wanted)


def test_no_door_is_untried():
    assert not [name for name, door in DOORS.items() if not (door.attacks or door.elsewhere or door.script)]


def test_the_page_says_so():
    found = rows()
    assert len(found) > 30, "the table has moved"
    for row in found:
        names = [name.strip() for name in row["door"].split(",")]
        assert not [name for name in names if name not in DOORS], row[0]
        says = [cell.strip() for cell in row["says"].split("|")]
        for profile, cell in zip(PROFILES, says):
            # all doors on the way must be open
            opened = all(profile in DOORS[name].open for name in names)
            assert cell == ("open" if opened else "shut"), row[0]


def test_every_door_is_on_the_page():
    used = {name.strip() for row in rows() for name in row["door"].split(",")}
    assert used == set(DOORS)
