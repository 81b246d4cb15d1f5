# SPDX-License-Identifier: Apache-2.0
"""Every attack of the table: at work where the wall is absent, refused inside."""

import pytest

from security import attacks

BY_ID = {attack.id: attack for attack in attacks.TABLE}
INSIDE = [(attack.id, profile) for attack in attacks.TABLE for profile in attack.profiles]


def test_ids_are_unique():
    assert len(BY_ID) == len(attacks.TABLE)


@pytest.mark.parametrize("name", BY_ID)
def test_control(name, places, sandboxes, scratch):
    """The attack works where the wall is absent: otherwise its refusal inside says nothing."""
    attack = BY_ID[name]
    place, _, arguments = attack.control.partition(" ")
    where = {
        "inside": lambda: sandboxes("default"),
        "inside-default": lambda: sandboxes("default"),
        "nested": lambda: sandboxes("nested"),
    }
    inside = place in where
    runner = where[place]() if inside else places[place]
    words = (arguments or attack.probe).format(tmp="/tmp" if inside else scratch).split()
    runner.run(*words).must_win()


@pytest.mark.parametrize("name,profile", INSIDE, ids=lambda value: value)
def test_refused(name, profile, sandboxes):
    sandboxes(profile).run(*BY_ID[name].probe.format(tmp="/tmp").split()).must_be_refused()
