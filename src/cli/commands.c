/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole command line in tables: every command, its options, its operands and what is said about
 * it. Help, the manual page and the completions are printed from these tables, so they cannot
 * drift.
 */
#include "cli/cli.h"

#define AT(member) offsetof(struct cli, member)
#define FLAG(name, letter, member, help) OPT(name, letter, OPT_FLAG, AT(member), NULL, help)
#define JSON FLAG("json", 0, json, "print JSON")
#define ENV_FILE                                                                                \
    OPT("env-file", 0, OPT_STRV, AT(env_files), "FILE", "environment from a file of K=V lines", \
        .max = 16)
#define EXEC_MODE                                                              \
    FLAG("interactive", 'i', interactive, "pass standard input on"),           \
        FLAG("tty", 't', tty, "give it a terminal"),                           \
        OPT("timeout", 0, OPT_DURATION, AT(timeout_ms), "TIME",                \
            "kill it and its child processes after this long; exit code 124"), \
        OPT("shell", 'c', OPT_STR, AT(shell), "STRING", "run a shell string instead of a command")
#define EXEC_PLACE                                                                              \
    OPT("env", 'e', OPT_ENV, AT(env), "K=V",                                                    \
        "set an environment variable; K alone passes on the caller's"),                         \
        ENV_FILE, OPT("workdir", 'w', OPT_STR, AT(workdir), "DIR", "working directory inside"), \
        OPT("user", 'u', OPT_STR, AT(user), "USER", "user inside: a name, or UID[:GID]")
#define DETACH_KEYS                                         \
    OPT("detach-keys", 0, OPT_STR, AT(detach_keys), "KEYS", \
        "keys that leave it running; default: ctrl-p,ctrl-q; none: no keys do")
#define AS_USER OPT("user", 'u', OPT_STR, AT(user), "USER", "act as this user of the sandbox")
#define LIMIT OPT("limit", 0, OPT_COUNT, AT(limit), "N", "stop after this many", .nonzero = true)
#define MODE OPT("mode", 'm', OPT_MODE, AT(mode), "MODE", "permission bits in octal")

static const struct opt run_options[] = {
    ENV_FILE,
    EXEC_MODE,
    FLAG("detach", 'd', detach,
         "start it in the background, print the sandbox's id, and keep the sandbox"),
    FLAG("json", 0, json, "print one JSON object with output and result at the end"),
};
static const struct opt create_options[] = {ENV_FILE, JSON};
static const struct opt exec_options[] = {
    EXEC_PLACE,
    EXEC_MODE,
    FLAG("detach", 'd', detach, "leave it running in the background and print its process number"),
    DETACH_KEYS,
    FLAG("json", 0, json, "print one JSON object with output and result at the end"),
};
static const struct opt shell_options[] = {EXEC_PLACE, DETACH_KEYS};
static const struct opt json_options[] = {JSON};
static const struct opt attach_options[] = {
    OPT("from", 0, OPT_COUNT, AT(from), "N",
        "start at this byte of its output; default: the oldest that is kept",
        .extra = AT(has_from)),
    FLAG("interactive", 'i', interactive, "pass standard input on"),
    FLAG("tty", 't', tty, "it has a terminal: pass key strokes and window sizes on"),
    DETACH_KEYS,
};
static const struct opt wait_options[] = {
    OPT("timeout", 0, OPT_DURATION, AT(timeout_ms), "TIME",
        "give up after this long; exit code 124", .extra = AT(has_timeout)),
    JSON,
};
static const struct opt signal_options[] = {FLAG("tree", 0, tree, "also to its child processes")};
static const struct opt ps_options[] = {
    FLAG("all", 'a', all, "also those that have ended"),
    FLAG("quiet", 'q', quiet, "ids only"),
    OPT("label", 0, OPT_STRV, AT(labels), "K[=V]",
        "only those with this label; all given must match", .max = 64),
    JSON,
};
static const struct opt logs_options[] = {
    FLAG("follow", 'f', follow, "keep printing new output"),
    OPT("tail", 0, OPT_COUNT, AT(tail), "N", "only the last N lines", .extra = AT(has_tail)),
};
static const struct opt stats_options[] = {
    FLAG("watch", 0, watch, "print it again and again, until interrupted"),
    OPT("interval", 0, OPT_DURATION, AT(interval_ms), "TIME",
        "with --watch: time in between; default: 2s", .nonzero = true),
    JSON,
};
static const struct opt prune_options[] = {
    FLAG("dry-run", 'n', dry_run, "only print what would be removed"),
    OPT("older", 0, OPT_DURATION, AT(older_ms), "TIME", "only those that ended this long ago"),
    OPT("label", 0, OPT_STRV, AT(labels), "K[=V]",
        "only those with this label; all given must match", .max = 64),
    JSON,
};
static const struct opt events_options[] = {
    FLAG("all", 'a', all, "begin with the oldest event that is kept"),
    OPT("from", 0, OPT_COUNT, AT(from), "N", "begin with this number (seq)", .extra = AT(has_from)),
    FLAG("no-follow", 0, no_follow, "print those that there were, and end"),
    FLAG("json", 0, json, "print one JSON object a line"),
};
static const struct opt stop_options[] = {
    OPT("grace", 0, OPT_DURATION, AT(grace_ms), "TIME",
        "time between SIGTERM and SIGKILL; default: 10s", .extra = AT(has_grace)),
};
static const struct opt rm_options[] = {
    FLAG("force", 'f', force, "also remove running sandboxes; ignore missing ones")};
static const struct opt update_options[] = {
    OPT("ttl", 0, OPT_DURATION, AT(lifetime.ttl_ms), "TIME",
        "end it and delete its files this long from now; 0: never", .extra = AT(lifetime.set_ttl)),
    OPT("idle", 0, OPT_DURATION, AT(lifetime.idle_ms), "TIME",
        "end it and delete its files after this long without use; 0: never",
        .extra = AT(lifetime.set_idle)),
};
static const struct opt audit_options[] = {
    OPT("since", 0, OPT_STR, AT(since), "TIME",
        "not before: 2026-11-15T22:33:44Z, or how long ago, such as 15m"),
    OPT("until", 0, OPT_STR, AT(until), "TIME", "not after"),
    OPT("id", 0, OPT_STR, AT(spec.id), "ID", "of one sandbox"),
    OPT("tenant", 0, OPT_STR, AT(tenant), "NAME", "of one tenant"),
    OPT("label", 0, OPT_STR, AT(label), "K[=V]", "of sandboxes with this label"),
    OPT("action", 0, OPT_STR, AT(action), "NAME", "of this kind: create, exec, refused and so on"),
    OPT("limit", 0, OPT_COUNT, AT(limit), "N", "the last N of them", .nonzero = true),
    FLAG("follow", 'f', follow, "keep printing new output"),
    FLAG("verify", 0, verify,
         "check that nothing was changed or cut out; exit code 1 if something was"),
    FLAG("json", 0, json, "print the lines of the log as they are"),
};
static const struct opt cp_options[] = {AS_USER};
static const struct opt help_options[] = {FLAG("man", 0, man, "print the manual page, for man(1)")};

static const struct opt ls_options[] = {
    AS_USER,
    FLAG("long", 'l', long_form, "also mode, owner, size, time and link target"),
    FLAG("recursive", 'R', recursive, "include subdirectories"),
    OPT("depth", 0, OPT_COUNT, AT(depth), "N", "this many levels", .nonzero = true),
    JSON,
};
static const struct opt cat_options[] = {
    AS_USER,
    OPT("offset", 0, OPT_SIZE, AT(offset), "N", "start at this byte"),
    OPT("size", 0, OPT_SIZE, AT(size), "N", "this many bytes at most", .nonzero = true),
};
static const struct opt put_options[] = {AS_USER, MODE};
static const struct opt fs_rm_options[] = {
    AS_USER,
    FLAG("recursive", 'r', recursive, "also remove directories and their contents"),
    FLAG("force", 'f', force, "ignore missing files"),
};
static const struct opt user_options[] = {AS_USER};
static const struct opt stat_options[] = {
    AS_USER, FLAG("follow", 'L', follow, "follow symbolic links"), JSON};
static const struct opt find_options[] = {AS_USER, LIMIT, JSON};
static const struct opt grep_options[] = {
    AS_USER,
    FLAG("fixed", 'F', fixed, "the pattern is a string, not a regular expression"),
    FLAG("ignore-case", 'i', ignore_case, "ignore upper and lower case"),
    OPT("include", 0, OPT_STR, AT(include), "GLOB", "only in files of this name"),
    LIMIT,
    JSON,
};
static const struct opt watch_options[] = {
    AS_USER, FLAG("recursive", 'r', recursive, "include subdirectories"),
    FLAG("json", 0, json, "print one JSON object a line")};

#define OPTIONS(table) .options = table, .n_options = CAY_COUNT(table)
#define ONE_ID .operands = "ID", .min = 1, .max = 1, .complete = "i"
#define IDS .operands = "ID...", .min = 1, .max = CLI_MANY, .complete = "i"

static const struct command fs_commands[] = {
    {.name = "ls",
     .example = "cay fs ls -l box /tmp",
     .run = cmd_fs_ls,
     OPTIONS(ls_options),
     .operands = "ID [PATH]",
     .min = 1,
     .max = 2,
     .complete = "ir",
     .summary = "list a directory"},
    {.name = "cat",
     .example = "cay fs cat box /etc/os-release",
     .run = cmd_fs_cat,
     OPTIONS(cat_options),
     .operands = "ID PATH...",
     .min = 2,
     .max = CLI_MANY,
     .complete = "ir",
     .summary = "print files"},
    {.name = "put",
     .example = "echo hello | cay fs put box /tmp/hello",
     .run = cmd_fs_put,
     OPTIONS(put_options),
     .operands = "ID PATH [FILE]",
     .min = 2,
     .max = 3,
     .complete = "irf",
     .summary = "write a file from standard input or FILE",
     .details = "The new content replaces the old in one step; missing directories are made."},
    {.name = "rm",
     .example = "cay fs rm -r box /tmp/old",
     .run = cmd_fs_rm,
     .destroys = true,
     OPTIONS(fs_rm_options),
     .operands = "ID PATH...",
     .min = 2,
     .max = CLI_MANY,
     .complete = "ir",
     .summary = "remove files"},
    {.name = "mkdir",
     .example = "cay fs mkdir box /workspace/a/b",
     .run = cmd_fs_mkdir,
     OPTIONS(put_options),
     .operands = "ID PATH...",
     .min = 2,
     .max = CLI_MANY,
     .complete = "ir",
     .summary = "make directories and those above them"},
    {.name = "mv",
     .example = "cay fs mv box /tmp/a /tmp/b",
     .run = cmd_fs_mv,
     OPTIONS(user_options),
     .operands = "ID FROM TO",
     .min = 3,
     .max = 3,
     .complete = "ir",
     .summary = "move or rename"},
    {.name = "stat",
     .example = "cay fs stat box /tmp/a",
     .run = cmd_fs_stat,
     OPTIONS(stat_options),
     .operands = "ID PATH...",
     .min = 2,
     .max = CLI_MANY,
     .complete = "ir",
     .summary = "show type, size, mode, owner and time"},
    {.name = "find",
     .example = "cay fs find box /workspace '*.py'",
     .run = cmd_fs_find,
     OPTIONS(find_options),
     .operands = "ID PATH [GLOB]",
     .min = 2,
     .max = 3,
     .complete = "ir.",
     .summary = "find files by name",
     .details =
         "GLOB is matched with the last part of the path, or with all of it if it has a slash."},
    {.name = "grep",
     .example = "cay fs grep --include '*.py' box /workspace 'def main'",
     .run = cmd_fs_grep,
     OPTIONS(grep_options),
     .operands = "ID PATH PATTERN",
     .min = 3,
     .max = 3,
     .complete = "ir.",
     .summary = "search the content of files",
     .details = "PATTERN is a POSIX extended regular expression. Exit code 1: nothing was found."},
    {.name = "watch",
     .example = "cay fs watch -r box /workspace",
     .run = cmd_fs_watch,
     OPTIONS(watch_options),
     .operands = "ID PATH",
     .min = 2,
     .max = 2,
     .complete = "ir",
     .summary = "print changes as they happen, until interrupted"},
    {0},
};

const struct command cli_commands[] = {
    {.name = "run",
     .example = "cay run -- python3 -c 'print(6 * 7)'\ncay run --memory 512M -v .:/workspace -w "
                "/workspace -- make test\ncay run -it -- bash",
     .run = cmd_run,
     OPTIONS(run_options),
     .spec = true,
     .operands = "[--] CMD [ARG...]",
     .max = CLI_MANY,
     .command_at = 1,
     .complete = ".",
     .summary = "run a command in a new sandbox, then remove it",
     .details = "Output and exit code are the command's. The first interrupt or termination signal "
                "is passed on to the command, the second kills it."},
    {.name = "create",
     .example = "cay create --name box --memory 1G --ttl 2h --label team=a",
     .run = cmd_create,
     OPTIONS(create_options),
     .spec = true,
     .operands = "",
     .summary = "create a sandbox and print its id",
     .details = "If a sandbox with this name and the same options exists, it is reused."},
    {.name = "exec",
     .example = "cay exec box -- ls -l /tmp\ncay exec box -c 'echo $((6 * 7)) > answer'\ncay exec "
                "-d box -- sleep 600",
     .run = cmd_exec,
     OPTIONS(exec_options),
     .operands = "ID [--] CMD [ARG...]",
     .min = 1,
     .max = CLI_MANY,
     .command_at = 2,
     .complete = "i.",
     .summary = "run a command in a sandbox"},
    {.name = "shell",
     .example = "cay shell box",
     .run = cmd_shell,
     OPTIONS(shell_options),
     ONE_ID,
     .summary = "open an interactive shell in a sandbox"},
    {.name = "procs",
     .example = "cay procs box",
     .run = cmd_procs,
     OPTIONS(json_options),
     ONE_ID,
     .summary = "list the commands started in a sandbox, running and ended"},
    {.name = "attach",
     .example = "cay attach box 12",
     .run = cmd_attach,
     OPTIONS(attach_options),
     .operands = "ID PROC",
     .min = 2,
     .max = 2,
     .complete = "ip",
     .summary = "print the output of a command until it ends",
     .details = "The exit code is the command's. An interrupted attach leaves the command alone."},
    {.name = "wait",
     .example = "cay wait --timeout 1m box 12",
     .run = cmd_wait,
     OPTIONS(wait_options),
     .operands = "ID PROC",
     .min = 2,
     .max = 2,
     .complete = "ip",
     .summary = "wait until a command ends; the exit code is its own"},
    {.name = "signal",
     .example = "cay signal box 12 TERM",
     .run = cmd_signal,
     OPTIONS(signal_options),
     .operands = "ID PROC SIGNAL",
     .min = 3,
     .max = 3,
     .complete = "ips",
     .summary = "send a signal to a command"},
    {.name = "ps",
     .example = "cay ps -a --label team=a\ncay ps -q",
     .run = cmd_ps,
     OPTIONS(ps_options),
     .operands = "",
     .summary = "list sandboxes"},
    {.name = "inspect",
     .example = "cay inspect box",
     .run = cmd_inspect,
     OPTIONS(json_options),
     ONE_ID,
     .summary = "print everything about a sandbox as JSON"},
    {.name = "stats",
     .example = "cay stats --watch",
     .run = cmd_stats,
     OPTIONS(stats_options),
     .operands = "[ID...]",
     .max = CLI_MANY,
     .complete = "i",
     .summary = "show what sandboxes use of CPU, memory, disk",
     .details = "CPU% is what is used now, 100% is one CPU; CPU is the time used since the start. "
                "MEM% is the part of the memory limit."},
    {.name = "top",
     .example = "cay top box",
     .run = cmd_top,
     OPTIONS(json_options),
     ONE_ID,
     .summary = "list all processes of a sandbox",
     .details = "Also those that commands left in the background, with their numbers inside. "
                "'cay procs' lists the commands that were started from outside."},
    {.name = "logs",
     .example = "cay logs -f box\ncay logs --tail 20 box 12",
     .run = cmd_logs,
     OPTIONS(logs_options),
     .operands = "ID [PROC]",
     .min = 1,
     .max = 2,
     .complete = "ip",
     .summary = "print the output of all commands of a sandbox, or of one",
     .details = "The times of output are not kept; 'cay procs' shows how long ago each command "
                "was started."},
    {.name = "cp",
     .example = "cay cp ./src box:/workspace\ncay cp box:/tmp/result.txt .\ncay cp box:/workspace "
                "- | gzip > backup.tar.gz",
     .run = cmd_cp,
     OPTIONS(cp_options),
     .operands = "SRC DST",
     .min = 2,
     .max = 2,
     .complete = "x",
     .summary = "copy files and directories into or out of a sandbox",
     .details = "One side is ID:PATH, the other a path on the host, or - for a tar stream on "
                "standard input or output. What is copied gets the name DST, or goes into DST if "
                "that is a directory. The stream of a directory holds what is in it. Host paths "
                "with a colon start with ./ or /. Kept are modes, times, links, hard links and "
                "user.* attributes (of a single file that is copied out: mode and time). Not kept "
                "are owners: what is new belongs to the user who copies, what is replaced to its "
                "owner. Holes of sparse files come as zeros. Other attributes (access control "
                "lists, capabilities) are left out. Sockets and devices, and on the way out fifos "
                "and set-id bits, are also left out, and named."},
    {.name = "fs",
     .example = "cay fs ls -l box /tmp",
     .sub = fs_commands,
     .operands = "COMMAND ID PATH...",
     .summary = "work with files in a sandbox",
     .details = "Paths are those of the sandbox and start at its root directory."},
    {.name = "pause",
     .example = "cay pause box",
     .run = cmd_pause,
     IDS,
     .summary = "freeze all processes of sandboxes"},
    {.name = "resume",
     .example = "cay resume box",
     .run = cmd_resume,
     IDS,
     .summary = "continue paused sandboxes"},
    {.name = "update",
     .example = "cay update --ttl 30m box",
     .run = cmd_update,
     OPTIONS(update_options),
     ONE_ID,
     .summary = "change when a sandbox ends by itself"},
    {.name = "stop",
     .example = "cay stop --grace 2s box",
     .run = cmd_stop,
     .destroys = true,
     OPTIONS(stop_options),
     IDS,
     .summary = "end sandboxes and delete their files",
     .details =
         "Every process gets SIGTERM and, after the grace time, SIGKILL. Then the files are gone "
         "and the sandbox cannot be started again: copy out with 'cay cp' first, or use "
         "'cay pause'. Its record and output stay until 'cay rm' or 'cay prune'."},
    {.name = "kill",
     .example = "cay kill box",
     .run = cmd_kill,
     .destroys = true,
     IDS,
     .summary = "end sandboxes at once and delete their files",
     .details =
         "As 'cay stop' without the grace time. The record and output stay until 'cay rm' or "
         "'cay prune'."},
    {.name = "rm",
     .example = "cay rm -f box",
     .run = cmd_rm,
     .destroys = true,
     OPTIONS(rm_options),
     IDS,
     .summary = "remove sandboxes with their files, output and records"},
    {.name = "prune",
     .example = "cay prune --dry-run\ncay prune --older 1h",
     .run = cmd_prune,
     .destroys = true,
     OPTIONS(prune_options),
     .operands = "",
     .summary = "remove the records of all sandboxes that have ended",
     .details = "Their files are gone already; what is removed is what 'cay ps -a' and 'cay logs' "
                "still tell of them. Running sandboxes are not touched."},
    {.name = "events",
     .example = "cay --host unix:/run/cay/cayd.sock events",
     .run = cmd_events,
     OPTIONS(events_options),
     .operands = "",
     .summary = "print what happens to sandboxes, as cayd tells it",
     .details = "Needs a daemon (--host), which writes it down: created, paused, resumed, ended, "
                "removed. From now on, until interrupted, unless told otherwise."},
    {.name = "audit",
     .example = "cay audit --since 1h --action exec",
     .run = cmd_audit,
     OPTIONS(audit_options),
     .operands = "",
     .summary = "print who did what through cayd",
     .details = "From another host (--host) it can be neither followed nor verified."},
    {.name = "doctor",
     .example = "cay doctor",
     .run = cmd_doctor,
     OPTIONS(json_options),
     .operands = "",
     .summary = "report which features this host supports",
     .details = "Exit code 0: sandboxes work here; 1: they do not."},
    {.name = "completion",
     .example = "cay completion bash > /etc/bash_completion.d/cay",
     .run = cmd_completion,
     .operands = "bash|zsh|fish",
     .min = 1,
     .max = 1,
     .complete = "w",
     .summary = "print the completion script of a shell",
     .details =
         "bash: write it to /etc/bash_completion.d/cay, or say 'source <(cay completion bash)' "
         "in ~/.bashrc. zsh: say 'source <(cay completion zsh)' in ~/.zshrc. fish: write it to "
         "~/.config/fish/completions/cay.fish."},
    {.name = "version",
     .example = "cay version",
     .run = cmd_version,
     OPTIONS(json_options),
     .operands = "",
     .summary = "print the version"},
    {.name = "help",
     .example = "cay help exec\ncay help fs find",
     .run = cmd_help,
     OPTIONS(help_options),
     .operands = "[COMMAND [COMMAND]]",
     .max = 2,
     .complete = "cC",
     .summary = "explain a command"},
    {0},
};
