# SPDX-License-Identifier: Apache-2.0
"""32 callers on four ids, by the command line and by the API: whatever they do to each other, each answer is one that
its operation may give, and afterwards list, processes, cgroups, directories and links of ids agree."""
import os

from faults.conftest import LONG, SEED
from faults.crowd import IDS, Crowd
from lib import invariants

SECONDS = float(os.environ.get("CAY_FAULTS_RACE", "60" if LONG else "10"))
CALLERS = 32


def test_a_crowd_on_four_ids(yard, record_property):
    daemon = yard().start()
    crowd = Crowd(daemon, CALLERS, SECONDS, SEED)
    faults = crowd.run()
    figures = (f"{sum(crowd.counts.values())} operations in {SECONDS:g} s, the slowest ({crowd.slowest[1]}) took "
               f"{crowd.slowest[0]:.1f} s: {dict(sorted(crowd.counts.items()))}")
    print(figures)
    record_property("counts", figures)
    assert daemon.alive(), daemon.log_text()[-2000:]
    assert not faults, "\n".join(faults)
    assert invariants.differences(daemon.cay, daemon.cgroup) == []
    for name in IDS:
        assert daemon.delete(f"/sandboxes/{name}").status in (204, 404)
        assert daemon.create(id=name) == name
        assert daemon.exec(name, "echo anew")["stdout"] == "anew\n"
    assert daemon.cay.run("audit", "--verify").returncode == 0
    daemon.remove(*IDS)
    assert invariants.differences(daemon.cay, daemon.cgroup) == []
