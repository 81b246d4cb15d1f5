# SPDX-License-Identifier: Apache-2.0
"""The daemon against its contract: requests made from api/openapi.yaml, valid and not, and the answers held against it.

CAY_TEST_API_SECONDS (30): how long the fuzzer goes on, as the operator and as a tenant. CAY_TEST_API_SEED (1): 0 takes a new one each time.
"""
import json
import os
import pathlib
import re
import subprocess

import pytest

from lib.daemon import Daemon
from lib.engine import ROOT

SECONDS = int(os.environ.get("CAY_TEST_API_SECONDS", "30"))
SEED = int(os.environ.get("CAY_TEST_API_SEED", "1"))
HOOKS = ROOT / "tests/tools/api_hooks.py"
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
          "response_headers_conformance,unsupported_method,allow_header_conformance,ignored_auth,ndjson_conformance")
# These never end by themselves; they are tested by hand, below and elsewhere.
ENDLESS = ("watchFiles", "attachProcess")
# Refusals that are no fault of the daemon: what this version cannot do, and a full disk.
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 507]
"""


@pytest.fixture(scope="module")
def python():
    return subprocess.run([ROOT / "tests/tools/venv"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def daemon():
    with Daemon(tcp=True) as running:
        yield running


def closed(schema):
    """Every object with named members has no others: what the daemon adds has to be in the contract."""
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            closed(value)
    elif isinstance(schema, list):
        for value in schema:
            closed(value)


@pytest.fixture(scope="module")
def contract(python, tmp_path_factory):
    """The contract as a JSON file, stricter than the one for clients, and as it is over TCP."""
    done = subprocess.run([python, ROOT / "tests/tools/openapi-check", ROOT / "api/openapi.yaml"],
                          stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    document = json.loads(done.stdout)["document"]
    closed(document["components"]["schemas"])
    document["security"] = [{"bearer": []}]
    path = tmp_path_factory.mktemp("contract") / "openapi.json"
    path.write_text(json.dumps(document))
    return path


def fuzz(python, contract, daemon, token, directory, phases):
    config = directory / "schemathesis.toml"
    config.write_text(CONFIG)
    argv = [python.replace("bin/python", "bin/st"), "--config-file", config, "run", contract, "--url", daemon.url,
            "--header", f"Authorization: Bearer {token}", "--checks", CHECKS, "--phases", phases,
            "--max-time", str(SECONDS), "--request-timeout", "10", "--workers", "1", "--no-color",
            "--suppress-health-check", "all", "--warnings", "off", *(["--seed", str(SEED)] if SEED else [])]
    for name in ENDLESS:
        argv += ["--exclude-operation-id", name]
    env = {**os.environ, "CAY_FUZZ_URL": daemon.url, "CAY_FUZZ_TOKEN": token, "CAY_FUZZ_CONTRACT": str(contract),
           "SCHEMATHESIS_HOOKS": str(HOOKS), "PYTHONPATH": str(HOOKS.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(list(map(str, argv)), cwd=directory, env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=SECONDS * 2 + 120)


@pytest.mark.slow
@pytest.mark.parametrize("tenant, phases", [(None, "examples,coverage"), ("acme", "examples,fuzzing")])
def test_answers_are_those_of_the_contract(python, contract, daemon, tenant, phases, tmp_path):
    token = daemon.token(f"fuzzer-{tenant}", tenant=tenant)
    done = fuzz(python, contract, daemon, token, tmp_path, phases)
    pathlib.Path(os.environ.get("CAY_TEST_API_LOG", tmp_path / "log")).write_text(done.stdout)
    assert daemon.alive(), daemon.log_text()[-3000:]
    assert done.returncode == 0, done.stdout[-8000:]


def test_what_never_ends_begins_as_the_contract_says(daemon):
    box = daemon.create(memory="64M")
    pid = daemon.start_process(box, shell="sleep 100")
    assert daemon.get(f"/sandboxes/{box}/processes/{pid}/attach").code == "invalid"
    assert daemon.get(f"/sandboxes/{box}/processes/999/attach").code in ("invalid", "not_found")
    assert daemon.get(f"/sandboxes/{box}/fs/watch?path=/missing").code == "not_found"
    assert daemon.get(f"/sandboxes/{box}/fs/watch").code == "invalid"
    with daemon.stream(f"/sandboxes/{box}/fs/watch?path=/tmp") as stream:
        assert stream.headers.get_content_type() == "application/x-ndjson"
        assert next(stream) == {"type": "watching"}
        daemon.put(f"/sandboxes/{box}/files?path=/tmp/new", b"x")
        event = next(stream)
        assert event["type"] == "change" and event["kind"] in ("created", "renamed") and event["path"] == "new"
    daemon.remove(box)


def test_commands_of_the_manual(daemon, tmp_path):
    """docs/API.md, from its first command to its last, in one shell."""
    text = (ROOT / "docs/API.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    assert len(blocks) >= 8
    script = "set -eu -o pipefail\n" + "\n".join(blocks).replace("/run/cay/cayd.sock", str(daemon.sock))
    done = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=120, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-2000:])
    for part in ("\n42\n", '"field":"memroy"', "line 3", "\n12\n", 'print("hello")', '"hello.py"'):
        assert part in done.stdout, (part, done.stdout)
    assert daemon.state_of("box1") == "not_found"
