/* SPDX-License-Identifier: Apache-2.0 */
/* cay-audit: options, the directory, and which of its three jobs: show, follow, verify. */
#include "auditor/auditor.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/opt.h"
#include "base/parse.h"
#include "base/util.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define O(field) offsetof(struct auditor, field)

static const struct opt options[] = {
    OPT("dir", 0, OPT_STR, O(dir), "DIR", "the log's directory (the state directory's audit)"),
    OPT("since", 0, OPT_STR, O(since), "T", "not before: 2026-11-15T22:33:44Z, or 15m (ago)"),
    OPT("until", 0, OPT_STR, O(until), "T", "not after"),
    OPT("id", 0, OPT_STR, O(id), "ID", "of this sandbox"),
    OPT("tenant", 0, OPT_STR, O(tenant), "TENANT", "of this tenant ('-': of none)"),
    OPT("label", 'l', OPT_STR, O(label), "K=V", "with this label, or with this key (K)"),
    OPT("action", 0, OPT_STR, O(action), "ACTION", "of this kind: create, exec, refused ..."),
    OPT("limit", 'n', OPT_COUNT, O(limit), "N", "the last N of them", .nonzero = true),
    OPT("follow", 'f', OPT_FLAG, O(follow), NULL, "then wait for more"),
    OPT("json", 0, OPT_FLAG, O(json), NULL, "the lines as they are in the log"),
    OPT("verify", 0, OPT_FLAG, O(verify), NULL, "check the whole log; exit code 1: it is broken"),
    OPT("help", 'h', OPT_FLAG, O(help), NULL, "explain this command"),
};

static int print_help(struct auditor *auditor)
{
    buf_str(&auditor->out,
            "Usage: cay audit [OPTION...]\n\nShow and check the log of who did what.\n\n"
            "Options:\n");
    for (size_t i = 0; i < CAY_COUNT(options); i++) {
        const struct opt *o = &options[i];
        char left[64], letter[8] = "    ";
        if (o->letter)
            snprintf(letter, sizeof(letter), "-%c, ", o->letter);
        snprintf(left, sizeof(left), "  %s--%s%s%s", letter, o->name, o->metavar ? " " : "",
                 o->metavar ? o->metavar : "");
        buf_fmt(&auditor->out, "%-32s%s\n", left, o->help);
    }
    return auditor_flush(auditor);
}

/* As the engine finds its state directory, but nothing is made. */
static int find_dir(char *out, size_t size, struct cay_error *err)
{
    const char *state = getenv("CAY_STATE_DIR"), *xdg = getenv("XDG_DATA_HOME"),
               *home = getenv("HOME");
    int n;
    if (state && *state)
        n = snprintf(out, size, "%s/audit", state);
    else if (geteuid() == 0)
        n = snprintf(out, size, "/var/lib/cay/audit");
    else if (xdg && *xdg == '/')
        n = snprintf(out, size, "%s/cay/audit", xdg);
    else if (home && *home == '/')
        n = snprintf(out, size, "%s/.local/share/cay/audit", home);
    else
        return cay_fail(err, CAY_E_INVALID, "neither $CAY_STATE_DIR nor $HOME is set");
    if (n < 0 || (size_t)n >= size)
        return cay_fail(err, CAY_E_INVALID, "the path of the audit log is too long");
    return 0;
}

/* A point in time, or how long ago. */
static int read_time(const char *text, uint64_t *ms, struct cay_error *err)
{
    uint64_t ago, now = cay_wall_ms();
    if (!text || audit_time_parse(text, ms, NULL) == 0)
        return 0;
    if (parse_duration(text, &ago, NULL) < 0)
        return cay_fail(err, CAY_E_INVALID,
                        "bad time '%.64s': expected 2026-11-15T22:33:44Z, or how long ago: 15m",
                        text);
    /* 0 would mean that there is no bound. */
    *ms = ago < now ? now - ago : 1;
    return 0;
}

static int make_query(struct auditor *a, struct audit_query *out)
{
    struct audit_query q = {.sandbox = a->id,
                            .label = a->label,
                            .action = a->action,
                            .limit = a->limit,
                            .last = a->limit != 0};
    if (a->tenant)
        q.tenant = strcmp(a->tenant, "-") == 0 ? "" : a->tenant;
    if (a->limit > AUDIT_MAX_LAST)
        return cay_fail(&a->err, CAY_E_INVALID, "--limit: at most %d", AUDIT_MAX_LAST);
    if (a->action && !audit_action_known(a->action))
        return cay_fail(&a->err, CAY_E_INVALID,
                        "unknown action '%.64s'; there are: create exec start write remove ... "
                        "(docs/AUDIT.md)",
                        a->action);
    if (read_time(a->since, &q.since_ms, &a->err) < 0 ||
        read_time(a->until, &q.until_ms, &a->err) < 0)
        return -1;
    *out = q;
    return 0;
}

static int follow(struct auditor *a, const char *dir, const struct audit_query *query)
{
    struct audit_follow *f = NULL;
    int result = audit_follow_open(dir, query->after_seq, &f, &a->err);
    while (result == 0) {
        result = audit_follow_read(f, query, auditor_show, a, &a->err);
        if (auditor_flush(a) < 0)
            result = -1;
        if (result < 0)
            break;
        /* The reader may go while nothing happens; and a file system may not tell of changes. */
        struct pollfd fds[] = {{.fd = audit_follow_fd(f), .events = POLLIN},
                               {.fd = STDOUT_FILENO, .events = 0}};
        poll(fds, 2, 1000);
        if (fds[1].revents & (POLLERR | POLLHUP | POLLNVAL))
            break;
    }
    audit_follow_close(f);
    return result;
}

/* The newest entry there is: what is after it is new, whatever the query asks for. */
static int newest(const char *dir, uint64_t *seq, struct cay_error *err)
{
    struct auditor quiet = {.json = true, .out = CAY_BUF(2 * AUDIT_MAX_LINE)};
    const struct audit_query last = {.limit = 1, .last = true};
    int result = audit_query(dir, &last, auditor_show, &quiet, err);
    buf_done(&quiet.out);
    *seq = quiet.seq;
    return result;
}

static int show(struct auditor *a)
{
    struct audit_query query = {0};
    uint64_t end = 0;
    if (make_query(a, &query) < 0 || (a->follow && newest(a->dir, &end, &a->err) < 0) ||
        audit_query(a->dir, &query, auditor_show, a, &a->err) < 0 || auditor_flush(a) < 0)
        return -1;
    if (!a->follow)
        return 0;
    query.after_seq = CAY_MAX(end, a->seq);
    query.limit = 0;
    query.last = false;
    return follow(a, a->dir, &query);
}

static int run(struct auditor *a, char **argv)
{
    autoarena struct opt_arena arena = {0};
    char dir[CAY_MAX_PATH];
    const struct opt_group groups[] = {{options, CAY_COUNT(options), a}, {0}};
    struct opt_args args;
    if (opt_parse(&arena, groups, argv, SIZE_MAX, &args, &a->err) < 0)
        return -1;
    if (a->help)
        return print_help(a);
    if (args.n)
        return cay_fail(&a->err, CAY_E_INVALID,
                        "unexpected argument '%.64s'; usage: cay audit [OPTION...]",
                        args.operands[0]);
    if (!a->dir) {
        if (find_dir(dir, sizeof(dir), &a->err) < 0)
            return -1;
        a->dir = dir;
    }
    return a->verify ? auditor_verify(a) : show(a);
}

static void report(const struct auditor *a)
{
    autobuf struct cay_buf line = CAY_BUF(8192);
    if (a->json) {
        buf_fmt(&line, "{\"error\":{\"code\":\"%s\",\"message\":", cay_code_name(a->err.code));
        buf_json(&line, a->err.text);
        buf_str(&line, "}}\n");
    } else
        buf_fmt(&line, "cay: %s\n", a->err.text);
    if (line.size)
        cay_write_all(STDERR_FILENO, line.data, line.size);
}

int main(int argc, char **argv)
{
    struct auditor auditor = {.out = CAY_BUF((size_t)AUDIT_MAX_LINE * 4)};
    int code = run(&auditor, argc ? argv + 1 : argv);
    if (code < 0) {
        auditor_flush(&auditor);
        report(&auditor);
        code = AUDITOR_EXIT_ERROR;
    }
    buf_done(&auditor.out);
    return code;
}
