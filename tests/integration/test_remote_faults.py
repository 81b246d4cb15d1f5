# SPDX-License-Identifier: Apache-2.0
"""cay --host when the daemon, its answers or the client get lost: nothing is done twice, and nothing stays behind."""
import pytest

from lib.both import Both
from lib.lossy import Lossy


@pytest.fixture(scope="module")
def both():
    with Both.with_daemon(drain="1s") as pair:
        yield pair


@pytest.fixture(scope="module")
def box(both):
    identifier = both.engine.create()
    yield identifier
    both.engine.run("rm", "-f", identifier)


@pytest.fixture
def losing(both, tmp_path):
    """losing(b"POST ...") -> a command line whose first such request gets no answer."""
    proxies = []

    def make(pattern):
        path = both.engine.top / f"lossy{len(proxies)}"
        proxies.append(Lossy(path, both.daemon.sock, pattern))
        return Both(both.daemon, f"unix:{path}")

    yield make
    for proxy in proxies:
        proxy.__exit__()
        assert proxy.lost.is_set()


# ---- requests


@pytest.mark.parametrize("options", [[], ["-d"], ["--json"]], ids=" ".join)
def test_a_start_whose_answer_is_lost(both, box, losing, options):
    """It is asked for again, and the command runs once."""
    word = "once" + "".join(options)
    done = losing(b"/processes ").remote("exec", *options, box, "-c", f": {word}; echo hi")
    assert (done.returncode, done.stderr) == (0, "")
    assert [word in p["command"] for p in both.engine.json("procs", "--json", box)].count(True) == 1


def test_a_run_whose_answer_is_lost(both, losing):
    before = both.engine.ids()
    done = losing(b"/processes ").remote("run", "-c", "echo once; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "once\n", "")
    assert both.engine.ids() == before


@pytest.mark.parametrize("words", [["mv", "/tmp/old", "/tmp/new"], ["rm", "/tmp/old"]], ids=lambda words: words[0])
def test_a_change_whose_answer_is_lost(both, box, losing, words):
    """It was done: that the file is not there any more is no answer."""
    both.local("exec", box, "-c", "echo x > /tmp/old", check=True)
    pattern = b"/fs/move " if words[0] == "mv" else b"DELETE "
    done = losing(pattern).remote("fs", words[0], box, *words[1:])
    assert done.returncode == 125 and "it may have been done" in done.stderr, done
    assert both.local("fs", "stat", box, "/tmp/old").returncode == 125
