# SPDX-License-Identifier: Apache-2.0
"""What the README shows works: its cay commands run as they stand, and the example program prints its line."""
import os
import re
import shlex
import shutil
import subprocess

import pytest

from lib.engine import BUILD, ROOT

README = ROOT / "README.md"


def commands():
    """The lines of the README's shell blocks that start with cay."""
    if not README.exists():
        return []
    found = []
    text = re.sub(r"^## Over HTTP\n.*?(?=^## )", "", README.read_text(), flags=re.M | re.S)  # tests/project/test_readme.py
    for block in re.findall(r"```(?:sh|console|bash|shell)\n(.*?)```", text, re.S):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            line = line.strip().removeprefix("$ ").split("  #")[0].strip()
            if line.startswith("cay "):
                found.append(line)
    return found


def test_readme_commands_run_in_order(fresh, tmp_path):
    if not commands():
        pytest.skip("no README")
    env = {**fresh.env, "PATH": f"{os.path.dirname(fresh.program)}:{fresh.env['PATH']}"}
    for name in ("data.csv", "file", "script.py", "report.txt", "main.py"):
        (tmp_path / name).write_text("print(1)\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "project").mkdir()
    ran = 0
    for line in commands():
        words = shlex.split(line, comments=True)
        if "-it" in words or "shell" in words[:2] or "--help" in words:
            continue
        done = subprocess.run(["/bin/bash", "-c", line], env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=60,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert done.returncode != 125, f"{line}\n{done.stderr}"
        ran += 1
    assert ran > 0


def test_options_of_the_readme_exist(cay):
    for line in commands():
        words = shlex.split(line, comments=True)[1:]
        name = words[0] if words[0] != "fs" else "fs " + words[1]
        done = cay.run("help", *name.split())
        assert done.returncode == 0, line
        for word in words:
            if word == "--":
                break
            if re.fullmatch(r"--[a-z-]+(=.*)?", word):
                assert word.split("=")[0] in done.stdout, f"{line}: {word}"


def test_example_program(fresh, tmp_path):
    """Built as its first comment says, but against the tree, and run."""
    compiler = shutil.which("cc")
    library = BUILD / "lib"
    if not compiler or not (library / "libcay.so").exists():
        pytest.skip("the library is not built")
    subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", ROOT / "examples" / "hello.c",
                    f"-L{library}", f"-Wl,-rpath,{library}", "-lcay", "-o", tmp_path / "hello"], check=True)
    done = subprocess.run([tmp_path / "hello"], env=fresh.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert re.fullmatch(r"hello from pid \d+ of a sandbox\n\(exit code 0\)\n", done.stdout), done
    assert fresh.ids() == []
    lines = [line for line in (ROOT / "examples" / "hello.c").read_text().splitlines() if line.strip()]
    assert len(lines) <= 45


@pytest.mark.parametrize("compiler,flags", [("cc", ["-xc", "-std=c17", "-pedantic"]), ("c++", ["-xc++", "-std=c++17"])])
def test_header_compiles_alone(tmp_path, compiler, flags):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    source = tmp_path / "t"
    source.write_text("#include <cay/cay.h>\nint main(void) { struct cay_error e; return cay_open(0, 0, &e) * 0; }\n")
    subprocess.run([compiler, *flags, "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/include", "-fsyntax-only", source], check=True)
