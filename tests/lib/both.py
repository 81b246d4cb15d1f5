# SPDX-License-Identifier: Apache-2.0
"""One engine, used with the command line as it is and by way of its cayd (cay --host)."""
import contextlib

from lib.daemon import PROGRAM, Daemon
from lib.engine import BUILD, PROG, Engine

REMOTE = BUILD / "lib" / "cay-remote"


class Both:
    """local and remote: the same engine, here and by way of its daemon."""

    def __init__(self, daemon, host=None, **env):
        self.daemon = daemon
        self.engine = daemon.cay
        self.host = host or f"unix:{daemon.sock}"
        self.more = env

    @classmethod
    @contextlib.contextmanager
    def with_daemon(cls, **options):
        """An engine and a daemon of its own, whose command line knows cay-remote."""
        for program in (PROGRAM, REMOTE):
            assert program.exists(), f"{program} is not built; run make"
        engine = Engine(prefix="cayr-")
        libexec = engine.top / "x"
        libexec.mkdir()
        for program in (PROG / "cay-keeper", REMOTE, BUILD / "lib" / "cay-audit"):
            (libexec / program.name).symlink_to(program)
        engine.env["CAY_LIBEXEC_DIR"] = str(libexec)
        daemon = Daemon(engine, **options)
        yield cls(daemon)
        left = daemon.close()
        engine.close()
        assert left == []

    def local(self, *args, **options):
        return self.engine.run(*args, **options)

    def remote(self, *args, **options):
        env = {**self.more, **options.pop("env", {})}
        return self.engine.run("--host", self.host, *args, env=env, **options)

    def popen(self, *args, **options):
        return self.engine.popen("--host", self.host, *args, **options)

    def same(self, *args, code=0, scrub=None, **options):
        """Runs it both ways; what both said."""
        here, there = self.local(*args, **options), self.remote(*args, **options)
        if scrub:
            for done in (here, there):
                done.stdout, done.stderr = scrub(done.stdout), scrub(done.stderr)
        assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)
        assert here.returncode == code, (here.returncode, here.stderr)
        return here

    def each(self, make, *, code=0, scrub=None):
        """make(run, box) both ways, each with a sandbox of its own; the answers, which are the same."""
        boxes = [self.engine.create(), self.engine.create()]
        try:
            said = []
            for run, box in zip((self.local, self.remote), boxes):
                done = make(run, box)
                text = [(scrub or str)(t.replace(box, "BOX")) for t in (done.stdout, done.stderr)]
                said.append((done.returncode, *text))
            assert said[1] == said[0]
            assert said[0][0] == code, said[0]
            return said[0]
        finally:
            self.engine.run("rm", "-f", *boxes)
