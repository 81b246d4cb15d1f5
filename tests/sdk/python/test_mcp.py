# SPDX-License-Identifier: Apache-2.0
"""cay-mcp by the official MCP client over stdio, against a real cayd: the tools, their bounds and their errors.

test_mcp_life.py has the sandbox's life and the program's options.
"""
import contextlib
import sys

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters


class Session:
    """A client of a server of its own, for code that is not async."""

    def __init__(self, portal, client):
        self.portal, self.client = portal, client

    def call(self, tool, **arguments):
        return self.portal.call(self.client.call_tool, tool, arguments)

    def text(self, tool, **arguments):
        """The text of a result that is no error."""
        result = self.call(tool, **arguments)
        assert not result.is_error, result
        assert len(result.content) == 1
        return result.content[0].text

    def error(self, tool, **arguments):
        """The text of a result that is one."""
        result = self.call(tool, **arguments)
        assert result.is_error, result
        return result.content[0].text

    def tools(self):
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}


@contextlib.contextmanager
def session_of(host, mode="auto"):
    server = StdioServerParameters(command=sys.executable, args=["-B", "-m", "cay.mcp", "--host", host])
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(Client(server, mode=mode)) as client:
            yield Session(portal, client)


@pytest.fixture(scope="module")
def session(host):
    with session_of(host) as found:
        yield found


# -- what a client sees


def test_the_tools_are_run_write_read_list_search(session):
    """Five tools, each with a description."""
    tools = session.tools()
    assert sorted(tools) == ["list", "read", "run", "search", "write"]
    assert all(len(tool.description) > 40 and "  " not in tool.description for tool in tools.values())


def test_schemas_are_typed(session):
    """Arguments have types, defaults and descriptions; what is required is."""
    wanted = {"run": {"command": "string", "cwd": "string", "timeout": "number", "env": None},
              "write": {"path": "string", "content": "string"},
              "read": {"path": "string", "start_line": "integer", "end_line": None},
              "list": {"path": "string", "depth": "integer"},
              "search": {"pattern": "string", "path": "string", "glob": "string"}}
    required = {"run": ["command"], "write": ["path", "content"], "read": ["path"], "list": [], "search": ["pattern"]}
    for name, tool in session.tools().items():
        properties = tool.input_schema["properties"]
        assert {key: value.get("type") for key, value in properties.items()} == wanted[name]
        assert tool.input_schema.get("required", []) == required[name]
        assert all(value["description"] for value in properties.values())
    run = session.tools()["run"]
    assert run.input_schema["properties"]["timeout"]["default"] == 120
    assert sorted(run.output_schema["properties"]) == ["exit_code", "stderr", "stdout", "timed_out"]


def test_annotations_tell_what_only_reads(session):
    """readOnlyHint of read, list and search; run and write may destroy; nothing reaches beyond the sandbox."""
    hints = {name: tool.annotations for name, tool in session.tools().items()}
    assert {name for name, hint in hints.items() if hint.read_only_hint} == {"read", "list", "search"}
    assert {name for name, hint in hints.items() if hint.destructive_hint} == {"run", "write"}
    assert {name for name, hint in hints.items() if hint.idempotent_hint} == {"write"}
    assert all(hint.open_world_hint is False for hint in hints.values())


def test_clients_with_the_old_handshake_are_served(host):
    """The initialize handshake of clients of today."""
    with session_of(host, "legacy") as session:
        assert "run" in session.tools()
        assert session.client.instructions.startswith("These are tools of one Linux sandbox")
        assert session.client.server_info.name == "cay"
        assert session.text("run", command="echo ok") == "ok"


# -- run


def test_run_gives_text_for_models_and_structure_for_programs(session):
    """run: output, stderr apart, exit code; a failed command is no error of the tool."""
    result = session.call("run", command="echo out; echo err >&2; exit 3")
    assert result.is_error is False
    assert result.content[0].text == "out\n[stderr]\nerr\n[exit code 3]"
    assert result.structured_content == {"exit_code": 3, "stdout": "out\n", "stderr": "err\n", "timed_out": False}
    assert session.text("run", command="true") == "[no output]"


def test_run_is_bash_with_empty_input(session):
    """run: a bash script of many lines; standard input is at its end."""
    assert session.text("run", command="a=(1 2)\nfor i in ${a[@]}; do\n  echo $i\ndone\ncat; echo end") == "1\n2\nend"


def test_run_takes_cwd_and_env(session):
    """run(cwd, env): relative ones are below the usual directory, ~ is the home."""
    session.text("run", command="mkdir -p work/deep")
    usual = session.text("run", command="pwd")
    assert session.text("run", command="pwd", cwd="/tmp") == "/tmp"
    assert session.text("run", command="pwd", cwd="work/deep") == f"{usual}/work/deep"
    assert session.text("run", command="pwd", cwd="~/work") == session.text("run", command="cd ~/work && pwd")
    assert session.text("run", command='echo "$A-$B"', env={"A": "1 $(id)", "B": "2"}) == "1 $(id)-2"
    assert "/no/such" in str(session.call("run", command="pwd", cwd="/no/such").content)


def test_run_times_out(session):
    """run(timeout): the command is killed; what it printed comes, with a note."""
    result = session.call("run", command="echo part; sleep 1000", timeout=0.3)
    assert result.content[0].text == "part\n[killed after 0.3 seconds; exit code 124]"
    assert result.structured_content["timed_out"] is True and result.structured_content["exit_code"] == 124


def test_long_output_is_cut_in_the_middle(session):
    """Results are bounded: the middle is left out, with a note."""
    result = session.call("run", command="seq 100000; seq 100000 >&2")
    for text in (result.structured_content["stdout"], result.structured_content["stderr"]):
        assert text.startswith("1\n2\n") and text.endswith("99999\n100000\n")
        assert "characters left out ...]" in text and len(text) < 30_100
    assert len(result.content[0].text) < 61_000


def test_files_and_processes_stay_between_calls(session):
    """One sandbox for all calls; a background process lives on."""
    session.text("run", command="echo kept > kept.txt; sleep 4567 > /dev/null 2>&1 &")
    assert session.text("run", command="cat kept.txt; pgrep -fc 'sleep 456[7]$'; pkill -f 'sleep 456[7]$'") == "kept\n1"


def test_calls_run_side_by_side(session):
    """A call does not wait for another one."""
    future = session.portal.start_task_soon(
        session.client.call_tool, "run", {"command": "while [ ! -e go ]; do sleep 0.02; done; echo went"})
    session.text("write", path="go", content="")
    assert future.result(30).content[0].text == "went"


def test_a_cancelled_call_kills_its_command(session):
    """Cancellation by the client kills the command with all that it started; the server serves on."""
    future = session.portal.start_task_soon(
        session.client.call_tool, "run", {"command": "echo $$ > started; sleep 7654 | cat"})
    script = "until [ -s started ]; do sleep 0.02; done; cat started"
    pid = session.text("run", command=script)
    assert session.text("run", command=f"kill -0 {pid} && pgrep -fc 'sleep 7654$'") == "1"
    future.cancel()
    alive = f"kill -0 {pid} 2> /dev/null || pgrep -f 'sleep 7654$' > /dev/null"
    assert session.text("run", command=f"while {alive}; do sleep 0.02; done; echo gone", timeout=20) == "gone"


# -- files


@pytest.mark.parametrize("text", ["plain\n", '{"a": [1, 2]}', "[1]", '"quoted"', "null", "7", "a\r\nb", "",
                                  "\u00e9\U0001f600 $(id)"])
def test_write_and_read_keep_text_as_it_is(session, text):
    """write(path, content), read(path): also text that looks like JSON."""
    assert session.text("write", path="dir/some.txt", content=text) \
        == f"{len(text.encode())} bytes written to /root/dir/some.txt"
    assert session.text("read", path="dir/some.txt") == text


def test_write_makes_directories_and_replaces(session):
    """write: missing directories are made, a file is replaced; paths absolute, relative or from ~."""
    session.text("write", path="/opt/new/deep/f", content="first, longer")
    session.text("write", path="/opt/new/deep/f", content="second")
    session.text("write", path="~/tilde.txt", content="~")
    assert session.text("run", command="cat /opt/new/deep/f ~/tilde.txt") == "second~"


def test_read_takes_lines(session):
    """read(start_line, end_line): both included; the last line may have no newline."""
    session.text("write", path="lines", content="".join(f"line {i}\n" for i in range(1, 10)) + "last")
    assert session.text("read", path="lines", start_line=3, end_line=4) == "line 3\nline 4\n"
    assert session.text("read", path="lines", start_line=9) == "line 9\nlast"
    assert session.text("read", path="lines", end_line=1) == "line 1\n"
    assert "fewer than 11 lines" in session.error("read", path="lines", start_line=11)
    assert "before start_line" in session.error("read", path="lines", start_line=4, end_line=3)


def test_read_of_a_long_file_comes_in_parts(session):
    """read is bounded: each part tells how to go on, and the parts are the whole."""
    session.text("run", command="seq 20000 > numbers; head -c 200000 /dev/zero | tr '\\0' x > one-line")
    parts, start = [], 1
    while True:
        text = session.text("read", path="numbers", start_line=start)
        body, note, rest = text.partition("[cut; go on with start_line=")
        parts.append(body)
        assert len(body) <= 30_000
        if not note:
            break
        start = int(rest.rstrip("]"))
    assert len(parts) > 2 and "".join(parts) == "".join(f"{i}\n" for i in range(1, 20001))
    assert session.text("read", path="one-line").endswith("x\n[line 1 goes on; see more of it with run]")


def test_read_splits_lines_at_newlines_alone(session):
    """Other separators of Unicode are text, and characters may be cut by the pieces they come in."""
    text = ("a\u2028b\x0bc\rd " + "\u20ac" * 9000 + "\n") * 3
    session.text("write", path="odd", content=text)
    assert session.text("read", path="odd") == text
    assert session.text("read", path="odd", start_line=2, end_line=2) == text[: len(text) // 3]


def test_read_errors(session):
    """Errors are errors of the tool, with cay's message."""
    session.text("run", command=r"printf 'a\xffb' > binary; mkdir -p empty")
    assert "No such file" in session.error("read", path="nowhere")
    assert "directory" in session.error("read", path="empty")
    assert "not text" in session.error("read", path="binary")
    assert "cannot" in session.error("write", path="/proc/none", content="x")


def test_list(session):
    """list(path, depth): a line for each entry."""
    session.text("run", command="mkdir -p tree/a/b && cd tree && printf 12345 > f; touch a/b/c; ln -s f link; mkfifo p")
    assert session.text("list", path="tree").splitlines() == ["a/", "f  5", "link -> f", "p  (pipe)"]
    deep = session.text("list", path="tree", depth=3).splitlines()
    assert sorted(deep) == ["a/", "a/b/", "a/b/c  0", "f  5", "link -> f", "p  (pipe)"]
    assert "tree/" in session.text("list").splitlines()
    assert session.text("list", path="tree/a/b/../../a") == "b/"


def test_list_is_bounded(session):
    """list: a thousand entries, and how many more there are."""
    session.text("run", command="mkdir -p many bare && cd many && touch $(seq 1203)")
    lines = session.text("list", path="many").splitlines()
    assert len(lines) == 1001 and lines[-1] == "[more than these; list a directory below]"
    assert session.text("list", path="bare") == "/root/bare is empty"
    assert "No such file" in session.error("list", path="nowhere")
    assert "not a directory" in session.error("list", path="many/1")


def test_search(session):
    """search(pattern, path, glob): path:line:text."""
    session.text("write", path="code/a.py", content="import os\n\ndef main():\n    pass\n")
    session.text("write", path="code/sub/b.c", content="int main(void);\n")
    assert sorted(session.text("search", pattern="main *\\(", path="code").splitlines()) \
        == ["/root/code/a.py:3:def main():", "/root/code/sub/b.c:1:int main(void);"]
    assert session.text("search", pattern="main", path="code", glob="*.py") == "/root/code/a.py:3:def main():"
    assert session.text("search", pattern="^int", path="code/sub/b.c") == "/root/code/sub/b.c:1:int main(void);"
    assert session.text("search", pattern="main", path="code", glob="[1]") == "nothing found"
    assert "bad pattern" in session.error("search", pattern="(", path="code")
    assert "No such file" in session.error("search", pattern="x", path="nowhere")


def test_search_is_bounded(session):
    """search: 200 matches, long lines cut in the middle."""
    session.text("run", command="mkdir -p hits; seq 500 > hits/n; printf 'begin%05000dend' 0 > hits/long")
    lines = session.text("search", pattern="[0-9]", path="hits/n").splitlines()
    assert len(lines) == 201 and lines[-1] == "[more than these; narrow the search]"
    found = session.text("search", pattern="begin", path="hits/long")
    assert "begin0" in found and "characters left out" in found and len(found) < 700


def test_names_and_lines_that_are_not_utf8(session):
    """They are shown with ? in place of what cannot be; the server serves on."""
    session.text("run", command=r"mkdir -p odd-names && cd odd-names && printf 'find \xff me' > $'n\xffme'")
    assert session.text("list", path="odd-names") == "n?me  9"
    assert session.text("search", pattern="find", path="odd-names") == "/root/odd-names/n?me:1:find ? me"


# -- errors of calls


def test_bad_arguments_are_errors_of_the_tool(session):
    """What does not fit the schema is told to the model; the server serves on."""
    for tool, arguments in (("run", {}), ("run", {"command": ""}), ("run", {"command": "true", "timeout": 0}),
                            ("run", {"command": "true", "env": {"a": 1}}), ("read", {"path": "x", "start_line": 0}),
                            ("list", {"depth": 513}), ("write", {"path": "x"})):
        assert "validation error" in session.error(tool, **arguments), (tool, arguments)
    assert "Unknown tool" in session.error("nonesuch")
    assert session.text("run", command="echo ok") == "ok"


def test_bad_names_of_variables_are_errors(session):
    """Errors of cay come with cay's message."""
    assert "have no '='" in session.error("run", command="true", env={"A=B": "x"})
