/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/man.h"

#include "base/troff.h"

#include <string.h>

static void option(struct cay_buf *out, const struct opt *opt)
{
    buf_str(out, ".TP\n\\fB");
    if (opt->letter)
        buf_fmt(out, "\\-%c\\fR, \\fB", opt->letter);
    buf_str(out, "\\-\\-");
    troff_text(out, opt->name);
    buf_str(out, "\\fR");
    if (opt->metavar) {
        buf_str(out, " \\fI");
        troff_text(out, opt->metavar);
        buf_str(out, "\\fR");
    }
    buf_str(out, "\n");
    troff_text(out, opt->help);
    buf_str(out, ".\n");
}

static void command(struct cay_buf *out, const struct command *parent, const struct command *c)
{
    buf_str(out, ".SS ");
    buf_fmt(out, "\"cay %s%s%s\"\n", parent ? parent->name : "", parent ? " " : "", c->name);
    if (!c->sub) {
        autobuf struct cay_buf usage = CAY_BUF(4096);
        cli_usage(&usage, parent, c);
        buf_str(out, ".B ");
        troff_text(out, buf_cstr(&usage));
        buf_str(out, "\n.PP\n");
    }
    char first = c->summary[0];
    buf_fmt(out, "%c", first >= 'a' && first <= 'z' ? first - 'a' + 'A' : first);
    troff_text(out, c->summary + 1);
    buf_str(out, ".\n");
    if (c->details) {
        troff_text(out, c->details);
        buf_str(out, "\n");
    }
    if (c->spec)
        buf_str(out, "It also takes the SANDBOX OPTIONS.\n");
    for (size_t i = 0; i < c->n_options; i++)
        option(out, &c->options[i]);
    buf_fmt(out, ".PP\n%s:\n.PP\n.nf\n", strchr(c->example, '\n') ? "Examples" : "Example");
    for (const char *p = c->example; *p;) {
        autobuf struct cay_buf line = CAY_BUF(4096);
        size_t size = strcspn(p, "\n");
        buf_add(&line, p, size);
        troff_text(out, buf_cstr(&line));
        buf_str(out, "\n");
        p += size + (p[size] == '\n');
    }
    buf_str(out, ".fi\n");
}

static const char head[] =
    ".\\\" SPDX-License-Identifier: Apache-2.0\n"
    ".\\\" Printed by 'cay help --man' from the tables of src/cli/commands.c.\n"
    ".TH CAY 1 \"\" \"cay\" \"User Commands\"\n"
    ".SH NAME\ncay \\- sandboxes on this machine, with no daemon\n"
    ".SH SYNOPSIS\n.B cay\n[\\fB\\-\\-host\\fR \\fIHOST\\fR]\n.I COMMAND\n[\\fIOPTION\\fR...] "
    "[\\fIARGUMENT\\fR...]\n"
    ".SH DESCRIPTION\n"
    ".B cay\nruns untrusted commands and code in sandboxes: own file "
    "system, processes, users, "
    "limits, and no network. It works on the state directory of the user who runs it, "
    "as root or not, and needs "
    "no daemon.\n";

static const char values[] =
    ".SH EXIT STATUS\n"
    "Of \\fBrun\\fR, \\fBexec\\fR, \\fBshell\\fR, \\fBattach\\fR and \\fBwait\\fR it is the exit "
    "status of the command; of all others it is 0 unless their description says more. Besides:\n"
    ".TP\n124\nThe time given with \\fB\\-\\-timeout\\fR ran out.\n"
    ".TP\n125\ncay itself failed; one line on standard error says why.\n"
    ".TP\n126\nThe command cannot be run.\n"
    ".TP\n127\nThe command was not found.\n"
    ".TP\n128+\\fIN\\fR\nSignal \\fIN\\fR ended the command.\n"
    ".SH RESOURCE LIMITS\n"
    "A sandbox does not depend on the soft limits of the shell that it was made from (see "
    "\\fBulimit\\fR of your shell): for its keeper and for every command in it they are as high as "
    "the hard ones, but for the stack, which is 8 MiB, and for open files, which are "
    "\\fB\\-\\-fds\\fR. Hard limits of the shell, or of the service that \\fBcayd\\fR(8) is, "
    "hold for all of it as long as it lives: on address space, file size, cpu time and open files. "
    "A keeper needs up to four open files for each command that runs, and as many for each caller; "
    "with a hard limit that is lower than that, further commands are refused with \\(dqtoo many "
    "open files (ulimit \\-n)\\(dq while the others go on.\n"
    ".SH VALUES\n"
    "Sizes are a number of bytes, or a number with K, M, G or T in powers of 1024: 512M, 1.5G. "
    "Times are a number of seconds, or numbers with ms, s, m, h or d: 250ms, 15m, 1h30m.\n"
    ".SH JSON\n"
    "Members keep their names; later versions may add more. Sizes are in bytes. Names that end in "
    "_ms, _us or _ns are times; those of clocks count from 1970. Bytes that are not UTF\\-8 "
    "become U+FFFD unless said otherwise. Errors are JSON on standard error: "
    "{\"error\":{\"code\":\"not_found\",\"message\":\"...\"}}.\n";

/* What --json prints: one line for all commands that print the same. */
static const struct {
    const char *commands, *members;
} json_members[] = {
    {"run, exec",
     "pid, exit_code, signal, timed_out, truncated, oom, reason (if it did not end by "
     "itself), duration_ms, cpu_ms, "
     "peak_memory, encoding (of stdout and stderr: utf8, or base64 if either has bytes "
     "that are not UTF-8), stdout, stderr; with -d: id, pid"},
    {"top", "a list of: pid, ppid, uid, state (as ps(1) has it), cpu_ms, memory, age_ms, command"},
    {"prune", "removed (a list of ids), dry_run"},
    {"events", "an object a line: seq, time_ms, type, sandbox, state, reason, labels"},
    {"wait", "as run, without the output"},
    {"create", "id"},
    {"ps", "a list of: id, state, reason, image, created_ms, ended_ms, ttl_left_ms, keeper_pid, "
           "init_pid, processes, labels; times and pids are 0 where there are none; with -q: a "
           "list of ids"},
    {"inspect", "as ps, and created and ended (times for people; null if there is none), spec: "
                "what the sandbox was made of"},
    {"procs", "a list of: pid, running, pty, started_ms, output_start, output_end, command, exit "
              "(null, or as wait)"},
    {"stats", "an object, or a list of them unless one ID was given; with --watch a line each "
              "time: id, cpu_us, cpu_user_us, "
              "cpu_system_us, memory, memory_peak, memory_max, pids, pids_max, io_read, io_write, "
              "disk, disk_max, inodes, inodes_max, oom_kills, output, output_max"},
    {"fs ls, fs find, fs stat",
     "a list, or an object if stat was given one path: name, type (file, directory, link, pipe, "
     "socket, char_device, block_device), size, mode, uid, gid, mtime_ns, inode, links, target"},
    {"fs grep", "a list of: path, line, text"},
    {"fs watch", "an object a line: kind, path"},
    {"audit", "the lines of the log, an object each; see docs/AUDIT.md"},
    {"doctor", "a list of: name, level (ok, loss, no), finding, advice"},
    {"version", "version"},
};

static const char tail[] =
    ".SH ENVIRONMENT\n"
    ".TP\n.B CAY_STATE_DIR\nWhere sandboxes are kept; default: /var/lib/cay as root, else "
    "$XDG_DATA_HOME/cay (~/.local/share/cay).\n"
    ".TP\n.B CAY_RUN_DIR\nWhere running ones have their sockets; default: /run/cay as root, else "
    "$XDG_RUNTIME_DIR/cay, or /tmp/cay\\-UID if there is none. The two belong together: a sandbox "
    "is found with both as they were when it was created. A directory is made if there is none. "
    "One that holds anything else than what cay puts there is refused, and so is a symbolic link "
    "of somebody else's.\n"
    ".TP\n.B CAY_CONFIG\nThe config file; see \\fBcay.conf\\fR(5).\n"
    ".TP\n.B CAY_CGROUP\nThe control group above those of all sandboxes; default: cay. In the cpu "
    "hierarchy of cgroup v1 it is used if it is there; else a sandbox's group is beside it, "
    "cay~\\fIID\\fR.\n"
    ".TP\n.B CAY_HOST\nThe cayd to use, as \\fB\\-\\-host\\fR; empty: none, sandboxes are here.\n"
    ".TP\n.B CAY_TOKEN\nThe token for it.\n"
    ".TP\n.B CAY_TOKEN_FILE\nA file with the token, as \\fB\\-\\-token\\-file\\fR.\n"
    ".TP\n.B CAY_CACERT\nA file of certificates (PEM) to trust for https instead of the "
    "system's.\n"
    ".TP\n.B CAY_INSECURE\n1: send the token by http to other hosts than this one, where all who "
    "can listen may read it.\n"
    ".TP\n.B CAY_LIBEXEC_DIR\nWhere the programs cay\\-keeper, cay\\-remote and cay\\-audit are, "
    "if "
    "not where they were installed.\n"
    ".TP\n.B NO_COLOR\nIf set and not empty: no colours.\n"
    ".SH FILES\n.TP\n.I /etc/cay/cay.conf\nImage aliases and defaults for root; for other users "
    "$XDG_CONFIG_HOME/cay/cay.conf. See \\fBcay.conf\\fR(5).\n"
    ".SH EXAMPLES\n.nf\n"
    "cay run \\-\\- python3 \\-c \\(aqprint(6 * 7)\\(aq\n"
    "cay run \\-\\-memory 256M \\-\\-timeout 10s \\-v ./src:/src:ro \\-w /src \\-\\- make test\n"
    "cay create \\-\\-name box \\-\\-ttl 1h\n"
    "cay exec box \\-\\- sh \\-c \\(aqecho hello > /tmp/a\\(aq\n"
    "cay cp box:/tmp/a .\n"
    "cay rm \\-f box\n"
    "cay \\-\\-host https://box.example \\-\\-token\\-file ~/.cay\\-token ps\n"
    ".fi\n"
    ".SH SEE ALSO\n\\fBcay.conf\\fR(5), \\fBcayd\\fR(8)\n";

void man_page(struct cli *cli, struct cay_buf *out)
{
    (void)cli;
    buf_str(out, head);
    buf_str(out, ".SH OPTIONS\nThese stand before the command. With a host named, here or by "
                 "\\fBCAY_HOST\\fR, every command is done by \\fBcayd\\fR(8) there, with the same "
                 "output; paths that are not those of a sandbox, but for \\fBcp\\fR and \\fBfs "
                 "put\\fR, are paths there.\n");
    for (const struct cli_host_option *o = cli_host_options; o->opt.name; o++)
        option(out, &o->opt);
    buf_str(out, ".SH COMMANDS\nEvery command knows \\fB\\-h\\fR, \\fB\\-\\-help\\fR.\n");
    for (const struct command *c = cli_commands; c->name; c++) {
        command(out, NULL, c);
        for (const struct command *sub = c->sub; sub && sub->name; sub++)
            command(out, c, sub);
    }
    buf_str(out,
            ".SH SANDBOX OPTIONS\nWhat a sandbox is made of; for \\fBrun\\fR and \\fBcreate\\fR. "
            "Defaults for all of them can be set in \\fBcay.conf\\fR(5).\n");
    for (size_t i = 0; i < opt_spec_count; i++)
        option(out, &opt_spec[i]);
    buf_str(out, values);
    for (size_t i = 0; i < CAY_COUNT(json_members); i++) {
        buf_fmt(out, ".TP\n.B %s\n", json_members[i].commands);
        troff_text(out, json_members[i].members);
        buf_str(out, ".\n");
    }
    buf_str(out, tail);
}
