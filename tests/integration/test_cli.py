# SPDX-License-Identifier: Apache-2.0
"""The command line as people meet it: words of other tools, what is not ignored, what is found by its beginning."""
import os

import pytest

from integration.support import info, refused

VERBS = [
    ("start box", "cannot be started again"), ("restart box", "cannot be started again"), ("pull alpine", "--image"),
    ("build .", "--image"), ("images", "--image"), ("ls", "cay ps"), ("list", "cay ps"), ("port box", "no network"),
    ("info", "cay doctor"), ("rename a b", "--name"), ("unpause box", "cay resume"), ("commit box", "not supported"),
]
OPTIONS = [
    ("run -p 8080:80 true", "ports"), ("run --publish 8080:80 true", "ports"), ("create -p 8080:80", "ports"),
    ("run --rm true", "always removes"), ("create --rm", "'cay run'"), ("run --hostname x true", "--name"),
    ("run --mount type=bind true", "-v HOST:DEST"), ("stop -t 5 x", "--grace"), ("rm -v x", "go with it"),
    ("logs -t x", "not kept"), ("logs --since 1m x", "not kept"), ("ps --filter x", "--label"),
    ("ps --format x", "--json"), ("update --memory 1G x", "--memory of 'cay create'"),
]


@pytest.mark.parametrize("line,words", VERBS + OPTIONS, ids=[line for line, _ in VERBS + OPTIONS])
def test_words_of_other_tools_are_answered(cay, line, words):
    assert "did you mean" not in refused(cay.run(*line.split()), "unknown", words)


@pytest.mark.parametrize("word", ["stpo", "kil", "kll", "r", "rmm", "sto"])
def test_what_destroys_is_never_proposed(cay, word):
    assert "did you mean" not in refused(cay.run(word, "x"), "unknown command")


@pytest.mark.parametrize("word,meant", [("creat", "create"), ("exce", "exec"), ("inspct", "inspect"), ("stat", "stats")])
def test_what_is_near_is_proposed(cay, word, meant):
    refused(cay.run(word, "x"), f"did you mean '{meant}'?")


@pytest.mark.parametrize("image", ["python:3.12", "docker.io/library/alpine", "ubuntu"])
def test_an_image_where_the_command_belongs(cay, image):
    refused(cay.run("run", image, "python3", "-V"), "command not found", "--image", code=127)
    refused(cay.run("run", "-d", image, "python3", "-V"), "command not found", "--image", code=127)
    assert "--image" not in refused(cay.run("run", "nosuch", "-V"), "command not found", code=127)
    assert "--image" not in refused(cay.run("run", "/no:such", "-V"), code=127)


# ---- nothing is ignored -----------------------------------------------------------------------------------------------

def test_a_token_without_a_daemon(cay, tmp_path):
    (tmp_path / "token").write_text("x\n")
    refused(cay.run("--token-file", tmp_path / "token", "ps"), "--token-file", "--host")
    refused(cay.run("ps", env={"CAY_TOKEN": "x"}), "CAY_TOKEN", "--host")
    refused(cay.run("ps", env={"CAY_TOKEN_FILE": str(tmp_path / "token")}), "CAY_TOKEN_FILE", "--host")
    assert cay.run("ps", env={"CAY_TOKEN": "x", "CAY_HOST": ""}).returncode == 0
    assert cay.run("help", env={"CAY_TOKEN": "x"}).returncode == 0


def test_a_config_file_that_is_named_is_there(cay, tmp_path):
    refused(cay.run("run", "--", "true", env={"CAY_CONFIG": "/no/such.conf"}), "/no/such.conf")
    # The usual one may be missing.
    env = {"CAY_CONFIG": "", "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert cay.run("run", "--", "true", env=env).returncode == 0


def test_ids_as_json(cay, make):
    box = make()
    assert box in cay.json("ps", "-aq", "--json")
    assert all(isinstance(name, str) for name in cay.json("ps", "-aq", "--json"))


def test_more_than_this_machine_has(cay):
    n = len(os.sched_getaffinity(0))
    refused(cay.run("run", "--cpus", n + 1, "--", "true"), "cpus", f"at most {n}")
    assert cay.run("run", "--cpus", n, "--", "true").returncode == 0
    done = cay.run("run", "--memory", "999T", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n") and "--memory 999T is more than" in done.stderr
    assert cay.run("run", "--memory", "64M", "--", "true").stderr == ""


def test_ranges_are_shown_as_they_are_written(cay):
    refused(cay.run("create", "--memory", "1"), "memory of 1 is out of range: 4M to 1024T")
