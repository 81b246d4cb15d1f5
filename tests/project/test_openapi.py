# SPDX-License-Identifier: Apache-2.0
"""api/openapi.yaml is valid, says what the daemon's own table of routes says, and its examples fit its schemas."""
import copy
import json
import re
import subprocess

import pytest

from lib.daemon import PROGRAM
from lib.engine import ROOT

CONTRACT = ROOT / "api/openapi.yaml"
# Statuses of HTTP itself, which have no code of their own.
HTTP_ONLY = ("414", "416", "431")
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


@pytest.fixture(scope="module")
def check():
    """Runs tests/tools/openapi-check on a file."""
    made = subprocess.run([ROOT / "tests/tools/venv"], stdout=subprocess.PIPE, text=True, check=True)

    def run(path):
        done = subprocess.run([made.stdout.strip(), ROOT / "tests/tools/openapi-check", path],
                              stdout=subprocess.PIPE, text=True, check=True, timeout=120)
        return json.loads(done.stdout)
    return run


@pytest.fixture(scope="module")
def result(check):
    return check(CONTRACT)


@pytest.fixture(scope="module")
def document(result):
    return result["document"]


@pytest.fixture(scope="module")
def operations(document):
    """{(method, path): operation}"""
    return {(method.upper(), path): item[method] for path, item in document["paths"].items()
            for method in METHODS if method in item}


def error_table():
    """{code: HTTP status} of CAY_ERROR_TABLE."""
    text = (ROOT / "include/cay/cay.h").read_text()
    table = re.search(r"#define CAY_ERROR_TABLE\(X\)(.*?[^\\])\n\n", text, re.S)[1]
    return {code: int(status) for code, status in re.findall(r'X\(\w+, "(\w+)", (\d+),', table)}


def test_is_valid_and_every_example_fits_its_schema(result):
    assert result["faults"] == []
    assert result["examples"] > 500


def test_a_wrong_example_is_noticed(check, document, tmp_path):
    """The positive control of the test above."""
    broken = copy.deepcopy(document)
    post = broken["paths"]["/api/v1/sandboxes"]["post"]
    post["requestBody"]["content"]["application/json"]["examples"]["small"]["value"]["memory"] = -1
    del post["responses"]["201"]["content"]["application/json"]["example"]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(broken | {"paths": {"/api/v1/sandboxes": broken["paths"]["/api/v1/sandboxes"]}}))
    faults = "\n".join(check(path)["faults"])
    assert "requestBody/content/application~1json" in faults and "no example" in faults


def test_has_the_routes_of_the_daemon_and_no_others(operations):
    assert PROGRAM.exists(), f"{PROGRAM} is not built; run make"
    done = subprocess.run([PROGRAM, "--routes"], stdout=subprocess.PIPE, text=True, check=True, timeout=20)
    lines = done.stdout.splitlines()
    routes = {(method, path): scope for method, path, scope in map(str.split, lines)}
    assert len(routes) == len(lines) > 40
    assert sorted(set(routes) - set(operations)) == [], "routes that the contract does not have"
    assert sorted(set(operations) - set(routes)) == [], "in the contract, and no route"
    assert {key: operation["x-cay-scope"] for key, operation in operations.items()} == routes


def test_what_is_open_needs_no_token(operations):
    for key, operation in operations.items():
        assert (operation.get("security") == []) == (operation["x-cay-scope"] == "open"), key


def test_error_codes_are_those_of_the_header(document):
    table = error_table()
    assert "unauthorized" in table and len(table) > 10
    assert sorted(document["components"]["schemas"]["ErrorCode"]["enum"]) == sorted(table)


def test_errors_are_answered_with_the_status_of_their_code(document, operations):
    table = error_table()
    shared = document["components"]["responses"]
    codes = {name: one["content"]["application/json"]["example"]["error"]["code"] for name, one in shared.items()
             if "content" in one}
    for key, operation in operations.items():
        for status, response in operation["responses"].items():
            name = response.get("$ref", "").rpartition("/")[2]
            if int(status) < 400 or not name or status in HTTP_ONLY:
                continue
            assert table[codes[name]] == int(status), (key, status, name)


def test_requests_allow_nothing_that_is_not_named(document, operations):
    """The daemon refuses unknown members; a client that is generated from the contract should, too."""
    schemas = document["components"]["schemas"]
    for key, operation in operations.items():
        media = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if media:
            schema = schemas[media["schema"]["$ref"].rpartition("/")[2]]
            assert schema["additionalProperties"] is False, key
