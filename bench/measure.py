# SPDX-License-Identifier: Apache-2.0
"""What bench/run measures with: the place it works in, the C programs that take the times, and figures.

Nothing here knows what a budget is; bench/run decides what to compare.
"""
import contextlib
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
MUSL = ["musl-gcc", "-static", "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]
FLAGS = ["-std=gnu17", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-I" + os.path.join(TOP, "include")]


class BenchError(Exception):
    pass


class Series:
    """Samples of one thing, in nanoseconds; times are given in microseconds."""

    def __init__(self, label, samples, failed=None):
        self.label, self.failed = label, failed
        self.samples = sorted(samples)

    def __bool__(self):
        return bool(self.samples) and not self.failed

    def at(self, share):
        last = len(self.samples) - 1
        return self.samples[min(last, int(share * len(self.samples)))] / 1000 if self.samples else None

    @property
    def p50(self):
        return self.at(0.50)

    @property
    def p99(self):
        return self.at(0.99)

    @property
    def mean(self):
        return sum(self.samples) / len(self.samples) / 1000 if self.samples else None

    def record(self):
        return {"label": self.label, "n": len(self.samples), "p50_us": self.p50, "p99_us": self.p99,
                "mean_us": self.mean, "failed": self.failed}


def in_memory():
    """Where /run is no tmpfs, as in a container, another: the run directory's cost is not a disk's elsewhere."""
    for path in ("/run", "/dev/shm"):
        kind = subprocess.run(["stat", "-f", "-c", "%T", path], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout.strip()
        if kind == "tmpfs" and os.access(path, os.W_OK):
            return path
    return "/run" if os.access("/run", os.W_OK) else None


def parse_series(text):
    """Lines of bench/spawn.c and bench/exec.c: {label: Series}."""
    found = {}
    for line in text.splitlines():
        label, status, numbers = line.split("\t")
        samples = [int(n) for n in numbers.split(",") if n]
        found[label] = Series(label, samples, None if status == "ok" else status)
    return found


class Place:
    """A temporary place with a small root, an OCI bundle and private state; gone with close()."""

    def __init__(self, build):
        self.build = build
        self.cay = os.path.join(build, "prog", "cay")
        self.dir = tempfile.mkdtemp(prefix="cay-bench-", dir="/var/tmp")
        # Others have to search it: the bare limit opens the root as a uid of its own.
        os.chmod(self.dir, 0o755)
        self.run = tempfile.mkdtemp(prefix="cay-bench-", dir=in_memory())
        self.rootfs, self.mnt = self.path("rootfs"), self.path("mnt")
        self.cgroup = "cay-bench-%d" % os.getpid()
        self.env = dict(os.environ, CAY_STATE_DIR=self.path("state"), CAY_RUN_DIR=os.path.join(self.run, "cay"),
                        CAY_LIBEXEC_DIR=os.path.join(build, "prog"), CAY_CGROUP=self.cgroup)
        self.log = self.path("stderr")
        self.holder = None
        os.mkdir(self.mnt)

    def path(self, name):
        return os.path.join(self.dir, name)

    def compile(self):
        """limit and spawn with musl where it is there; exec with libcay when that is built."""
        static = MUSL if shutil.which("musl-gcc") else ["cc", "-static"]
        for name in ("limit", "spawn", "http"):
            subprocess.run(static + FLAGS + [f"{HERE}/{name}.c", "-o", self.path(name)], check=True)
        library = os.path.join(self.build, "lib", "libcay.a")
        if os.path.exists(library) and os.path.exists(self.cay):
            subprocess.run(["cc"] + FLAGS + [f"{HERE}/exec.c", library, "-o", self.path("exec")], check=True)

    def make_rootfs(self):
        """/bin/true with its libraries and the directories that every runtime mounts on."""
        for name in "bin dev etc proc root sys tmp usr var run".split():
            os.makedirs(os.path.join(self.rootfs, name))
        out = subprocess.run(["ldd", "/bin/true"], text=True, stdout=subprocess.PIPE).stdout
        for source in ["/bin/true"] + re.findall(r"(/\S+) \(0x", out):
            target = self.rootfs + source
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(os.path.realpath(source), target)
        for name, line in (("passwd", "root:x:0:0:root:/root:/bin/sh\n"), ("group", "root:x:0:\n")):
            with open(os.path.join(self.rootfs, "etc", name), "w") as f:
                f.write(line)

    def make_bundle(self, tool):
        """The tool's own default spec with /bin/true on our root."""
        bundle = self.path("bundle-" + tool)
        os.mkdir(bundle)
        subprocess.run([tool, "spec"], cwd=bundle, check=True)
        config = os.path.join(bundle, "config.json")
        with open(config) as f:
            spec = json.load(f)
        spec["process"].update(terminal=False, args=["/bin/true"])
        spec["root"]["path"] = self.rootfs
        with open(config, "w") as f:
            json.dump(spec, f)
        return bundle

    def v1_view(self):
        """A mount namespace without the hybrid host's v2 tree, which crun refuses; None elsewhere."""
        if not os.path.ismount("/sys/fs/cgroup/unified"):
            return None
        self.holder = subprocess.Popen(["unshare", "-m", "sh", "-c",
                                        "umount /sys/fs/cgroup/unified && echo ready && exec sleep 86400"],
                                       stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline().strip() != "ready":
            raise BenchError("no mount namespace without /sys/fs/cgroup/unified")
        return f"/proc/{self.holder.pid}/ns/mnt"

    # -- taking samples

    def program(self, argv):
        with open(self.log, "ab") as log:
            done = subprocess.run(argv, env=self.env, text=True, stdout=subprocess.PIPE, stderr=log)
        if done.returncode != 0:
            raise BenchError(f"{os.path.basename(argv[0])} ended with {done.returncode}: {self.last_error()}")
        return parse_series(done.stdout)

    def last_error(self):
        try:
            with open(self.log, errors="replace") as f:
                return (f.read().strip().splitlines() or [""])[-1]
        except OSError:
            return ""

    def spawn(self, commands, rounds=0, warmup=0, parallel=0):
        """commands: {label: argv}. Interleaved, or the only one `parallel` times at once."""
        argv = [self.path("spawn"), "--rounds", str(rounds), "--warmup", str(warmup),
                "--parallel", str(parallel)]
        for i, (label, command) in enumerate(commands.items()):
            argv += (["+++"] if i else []) + [label] + command
        return self.program(argv)

    def exec(self, ids, rounds, lists=0, warmup=5):
        return self.program([self.path("exec"), "--rounds", str(rounds), "--warmup", str(warmup),
                              "--lists", str(lists)] + ids)

    def have_exec(self):
        return os.path.exists(self.path("exec"))

    # -- the engine

    def cay_json(self, *argv):
        done = subprocess.run([self.cay, *argv], env=self.env, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        if done.returncode != 0:
            raise BenchError(f"cay {' '.join(argv)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def ids(self):
        done = subprocess.run([self.cay, "ps", "-a", "-q"], env=self.env, text=True, stdout=subprocess.PIPE)
        return done.stdout.split()

    def remove_all(self):
        """Removes every sandbox of this place; returns the seconds it took."""
        start, ids = time.monotonic(), self.ids()
        for i in range(0, len(ids), 100):
            subprocess.run([self.cay, "rm", "-f", *ids[i:i + 100]], env=self.env, stdout=subprocess.DEVNULL)
        return time.monotonic() - start

    def _remove_cgroups(self):
        left = glob.glob(f"/sys/fs/cgroup/{self.cgroup}") + glob.glob(f"/sys/fs/cgroup/*/{self.cgroup}")
        left += glob.glob(f"/sys/fs/cgroup/cpu*/{self.cgroup}~*")
        for base in left:
            for path, _, _ in os.walk(base, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        return not any(map(os.path.exists, left))

    def close(self):
        if os.path.exists(self.cay):
            self.remove_all()
        if self.holder:
            self.holder.kill()
            self.holder.wait()
        # What a daemon had prepared ends a little after it.
        deadline = time.monotonic() + 5
        while not self._remove_cgroups() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.dir, ignore_errors=True)
        shutil.rmtree(self.run, ignore_errors=True)


def pss_kib(pid):
    """Proportional memory of one process, kernel side not included."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            if line.startswith("Pss:"):
                return int(line.split()[1])
    raise BenchError(f"no Pss for {pid}")


def table(head, rows):
    """Columns as wide as they need to be; numbers to the right."""
    cells = [head] + rows
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(head))]
    lines = []
    for n, row in enumerate(cells):
        lines.append("  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w)
                               for i, (c, w) in enumerate(zip(row, widths))).rstrip())
        if n == 0:
            lines.append("  ".join("-" * w for w in widths))
    return "\n".join(lines)


def show(value, unit=""):
    """A time in microseconds as milliseconds, a ratio with two digits, a dash for nothing."""
    if value is None:
        return "-"
    return f"{value / 1000:.2f} ms" if unit == "us" else f"{value:.2f}{unit}"
