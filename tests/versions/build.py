# SPDX-License-Identifier: Apache-2.0
"""Programs of other versions, beside those of the build tree: variants of this tree (meson_options.txt), or a commit.

    build("next")            -> build/versions/next, with prog/cay, prog/cay-keeper and lib/cayd
    build("v0.1.0")          -> the same for a commit, a tag or a branch, whose sources are taken from git
"""
import fcntl
import pathlib
import shutil
import subprocess

from lib.engine import BUILD, ROOT

VARIANTS = ("next", "must", "major")
TARGETS = {"programs": ("prog", ["cay", "cay-keeper"]), "library": ("lib", ["cayd"])}
# Built for one run: quickly made is better than fast.
QUICK = ["-Doptimization=1", "-Ddebug=false"]


def run(command, log, **options):
    with open(log, "ab") as out:
        if subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options).returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{log.read_text(errors='replace')[-4000:]}")


def sources(ref, top, log):
    """The tree of a commit."""
    commit = subprocess.run(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], cwd=ROOT, check=True, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    source, mark = top / "source", top / "commit"
    if not mark.exists() or mark.read_text() != commit:
        shutil.rmtree(top)
        source.mkdir(parents=True)
        run(["sh", "-c", f"git archive {commit} | tar -x -C '{source}'"], log, cwd=ROOT)
        mark.write_text(commit)
    return source


def build(name):
    top = ROOT / "build" / "versions" / name.replace("/", "_")
    top.mkdir(parents=True, exist_ok=True)
    log = top.parent / (top.name + ".log")
    with open(top.parent / (top.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.write_bytes(b"")
        make(name, top, log)
    return top


def make(name, top, log):
    source = ROOT if name in VARIANTS else sources(name, top, log)
    cross = ROOT / "build" / "musl.cross"
    for part, (place, targets) in TARGETS.items():
        options = [f"-Dpart={part}", *QUICK, *([f"-Dvariant={name}"] if name in VARIANTS else [])]
        if part == "programs" and cross.exists():
            options += ["--cross-file", cross]
        if not (top / place / "build.ninja").exists():
            run(["meson", "setup", *options, top / place, source], log)
        run(["ninja", "-C", top / place, *targets], log)


def builds(ref):
    """{name: directory} of all of them; "own" is the build tree."""
    found = {"own": pathlib.Path(BUILD), **{name: build(name) for name in VARIANTS}}
    if ref:
        found["ref"] = build(ref)
    return found
