# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: the generated twin, types, installation, documentation and examples."""
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import cay as sdk

ROOT = pathlib.Path(__file__).resolve().parents[3]
SDK = ROOT / "sdk/python"
TWINS = [(sdk.AsyncCay, sdk.Cay), (sdk.AsyncSandbox, sdk.Sandbox), (sdk.AsyncProcess, sdk.Process),
         (sdk.AsyncFiles, sdk.Files)]


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, timeout=240, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_sync_twin_is_up_to_date(tmp_path):
    """src/cay/_sync is what tools/unasync.py makes of src/cay/_async."""
    run(sys.executable, SDK / "tools/unasync.py", tmp_path)
    made = {file.name: file.read_text() for file in tmp_path.glob("*.py")}
    there = {file.name: file.read_text() for file in (SDK / "src/cay/_sync").glob("*.py")}
    there.pop("_runtime.py")
    assert there == made, "run sdk/python/tools/unasync.py"
    assert not re.search(r"\b(async|await|Async\w+|aclose|asyncio)\b", "".join(
        line for text in made.values() for line in text.splitlines(True) if "Generated from" not in line
        and not line.startswith('"""')))


def public(cls):
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_") and callable(value)}


@pytest.mark.parametrize("one, other", TWINS, ids=lambda cls: cls.__name__)
def test_the_twins_are_alike(one, other):
    """The same methods with the same parameters; all of them with a docstring."""
    first, second = public(one), public(other)
    renamed = {"aclose": "close"}
    assert {renamed.get(name, name) for name in first} == set(second)
    for name, method in first.items():
        twin = second[renamed.get(name, name)]
        assert list(inspect.signature(method).parameters) == list(inspect.signature(twin).parameters), name
        assert method.__doc__ and twin.__doc__, name


def test_types():
    """mypy --strict over the package, adapters included."""
    run(sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir",
        pathlib.Path(sys.prefix) / "mypy-cache", SDK / "src/cay", cwd=ROOT)


def test_what_is_installed(tmp_path):
    """What pip installs has all modules, the mark of typed packages, its version and the program cay-mcp; the sources
    that it was installed from are as they were."""
    source = tmp_path / "source"
    shutil.copytree(SDK, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    before = sorted(source.rglob("*"))
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
        "--no-build-isolation", "--no-index", "--target", tmp_path / "target", source)
    assert sorted(source.rglob("*")) == before
    target = tmp_path / "target"
    files = {str(file.relative_to(SDK / "src")) for file in (SDK / "src/cay").rglob("*")
             if file.suffix == ".py" or file.name == "py.typed"}
    assert all((target / file).exists() for file in files)
    program = ("import cay, importlib.metadata as m; assert cay.__file__.startswith(%r); "
               "assert m.version('cay-sandbox') == cay.__version__" % str(target))
    run(sys.executable, "-c", program, env={**os.environ, "PYTHONPATH": str(target)})
    assert (target / "bin/cay-mcp").exists()


def test_versions_are_those_of_the_project():
    version = re.search(r"^ *version : '([^']+)'", (ROOT / "meson.build").read_text(), re.M)[1]
    assert sdk.__version__ == version
    assert f'version = "{version}"' in (SDK / "pyproject.toml").read_text()


def test_everything_public_is_named():
    """`cay.__all__` is what can be imported, but for modules."""
    names = {name for name, value in vars(sdk).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert set(sdk.__all__) == names


# -- documentation

def blocks():
    for page in ("docs/PYTHON.md", "sdk/python/README.md"):
        for number, text in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)):
            yield pytest.param(text, id=f"{page}-{number}")


@pytest.mark.parametrize("program", blocks())
def test_programs_of_the_documentation(program, host):
    """Each block runs as it stands, and leaves nothing."""
    run(sys.executable, "-B", "-c", program, env={**os.environ, "CAY_HOST": host})
    with sdk.Cay(host) as client:
        assert client.list() == []


def test_errors_of_the_documentation():
    """The table has each class with its code."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", (ROOT / "docs/PYTHON.md").read_text(), re.M)
    assert dict(rows) == {error.__name__: error.code for error in sdk._errors.ERRORS}


WANTED = {
    "hello.py": "exit code: 0\naverage age: 60.5\nthe endless one: stopped\nnot_found\n",
    "background.py": "first client: step 1\nsecond client: thank you\nexit code: 0\n",
    "parallel.py": "the answer is from: right\nsandboxes left: 0\n",
}


def test_every_example_is_known():
    assert {file.name for file in (ROOT / "examples/python").glob("*.py")} == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_examples(name, host):
    """examples/python/*.py, as they are."""
    found = run(sys.executable, "-B", ROOT / "examples/python" / name, env={**os.environ, "CAY_HOST": host})
    assert found == WANTED[name]
    with sdk.Cay(host) as client:
        assert client.list() == []
