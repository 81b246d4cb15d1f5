# SPDX-License-Identifier: Apache-2.0
"""Damage to every file of the state and the run directory: no crash, no hang, no other sandbox touched, and what is
damaged is named and can be removed. With the command line alone, with cayd, and over a restart of it."""
import random

from faults import ground, house
from faults.conftest import LONG, SEED
from lib import mutate

MODES = ("cli", "cayd", "restart")
BITS = 64          # flips behind the header of a record, in the long form
FLIPS = 8          # of the files of the daemon
SHARE = 1          # of each kind of damage to each file, in the short form


def sample(damages, rng):
    """One of each kind."""
    kinds = {}
    for damage in damages:
        kinds.setdefault(damage.kind, []).append(damage)
    return [damage for kind in kinds.values() for damage in rng.sample(kind, min(SHARE, len(kind)))]


def some(damages, rng):
    """All but most of the flips: these files are text, and have no header."""
    bits = [damage for damage in damages if damage.kind == "flip"]
    return rng.sample(bits, min(FLIPS, len(bits))) + [damage for damage in damages if damage.kind != "flip"]


def few(damages, rng):
    """A pipe, which whoever opens it may wait for, and three others."""
    pipes = [damage for damage in damages if damage.kind == "fifo"]
    return pipes + rng.sample([damage for damage in damages if damage.kind != "fifo"], 3)


def cases(yard_ground, rng):
    """(file, damage, mode): all of them, or one of each kind in one of the modes."""
    for number, name in enumerate(ground.TARGETS):
        damages = yard_ground.damages(name, rng, BITS)
        if LONG:  # a bit is a bit: each of them in one of the modes
            yield from ((name, damage, mode) for turn, damage in enumerate(damages) for mode in
                        ([MODES[turn % len(MODES)]] if damage.kind == "flip" else MODES))
            continue
        for turn, damage in enumerate(sample(damages, rng)):
            # A file that has no lock any more is looked at for two seconds: two of those are enough.
            if (name, damage.kind) in ground.SLOW or name in ground.PATIENT and turn % 4:
                continue
            yield name, damage, MODES[(number + turn) % len(MODES)]


def test_records_of_sandboxes(yard, record_property):
    yard_ground = ground.Ground(yard())
    for name, damage, mode in cases(yard_ground, random.Random(SEED)):
        yard_ground.case(name, damage, mode)
    print(f"records of sandboxes, seed {SEED}: {yard_ground.counts}")
    record_property("counts", str(yard_ground.counts))
    assert yard_ground.flagged == []


def test_files_of_the_daemon(yard, record_property):
    home = house.House(yard(audit_size="2K"))
    rng = random.Random(SEED)
    for name in house.FILES:
        damages = home.damages(name, rng, BITS)
        for turn, damage in enumerate(some(damages, rng) if LONG else few(sample(damages, rng), rng)):
            for mode in house.MODES if LONG else [house.MODES[turn % len(house.MODES)]]:
                home.case(name, damage, mode)
    home.finish()
    print(f"files of the daemon, seed {SEED}: {home.counts}")
    record_property("counts", str(home.counts))
    assert home.flagged == []


def test_the_damage_is_done(tmp_path):
    """Each one changes what is at the name, and the same seed does the same."""
    path = tmp_path / "record"
    names = []
    for _ in range(2):
        path.write_bytes(bytes(range(200)))
        damages = mutate.all_of(path, b"of another", random.Random(SEED))
        names.append([(d.kind, d.name) for d in damages])
        for damage in damages:
            mutate.remove(path)
            path.write_bytes(bytes(range(200)))
            damage.apply(path)
            assert not path.is_file() or path.is_symlink() or path.read_bytes() != bytes(range(200)), damage
    assert names[0] == names[1] and len({kind for kind, _ in names[0]}) > 8
