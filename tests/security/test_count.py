# SPDX-License-Identifier: Apache-2.0
"""The suite says how many attacks it has, by group, and that none lost its control."""

import collections
import re

from security import attacks, harness

MINIMUM = 70
GROUPS = (attacks.ENGINE, attacks.KERNEL, attacks.EXHAUSTION, attacks.FILES)


def all_attacks():
    """(id, group) of the table and of every mark in the test files."""
    found = [(attack.id, attack.group) for attack in attacks.TABLE]
    for path in sorted(harness.HERE.glob("test_*.py")):
        found += re.findall(r'^@pytest\.mark\.attack\(\s*"([^"]+)",\s*"([^"]+)",', path.read_text(), re.M)
    return found


def test_there_are_enough_attacks_in_every_group():
    found = all_attacks()
    assert len(set(found)) == len(found), "an id is used twice"
    count = collections.Counter(group for _, group in found)
    assert set(count) == set(GROUPS)
    assert sum(count.values()) >= MINIMUM and min(count.values()) >= 12, count


def test_every_attack_of_the_table_names_its_control():
    for attack in attacks.TABLE:
        assert attack.control.split()[0] in (
            "host",
            "ns",
            "nobody",
            "inside",
            "inside-default",
            "nested",
        ), attack
        assert attack.profiles and set(attack.profiles) <= {"default", "strict", "nested"}, attack
