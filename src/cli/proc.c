/* SPDX-License-Identifier: Apache-2.0 */
/* procs, attach, wait, signal, logs: commands that run in a sandbox, from outside. */
#include "cli/cli.h"
#include "cli/pump.h"

#include "base/parse.h"
#include "base/table.h"

#include <signal.h>
#include <string.h>

/* Lines that `logs --tail` looks back at most; more than any log holds of lines of 4 bytes. */
#define MAX_TAIL (1u << 20)

struct listing {
    struct table table;
    struct cay_buf json;
    bool want_json;
    uint64_t now_ms;
};

static void add_json(struct cay_buf *out, const struct cay_proc_info *p)
{
    json_comma(out);
    buf_str(out, "{");
    json_proc(out, p);
    buf_str(out, "}");
}

static int add_proc(const struct cay_proc_info *p, void *data)
{
    struct listing *l = data;
    char age[CLI_SHORT];
    if (l->want_json) {
        add_json(&l->json, p);
        return 0;
    }
    table_cellf(&l->table, "%ld", (long)p->pid);
    table_cell(&l->table, p->running ? "running" : "ended");
    table_cell(&l->table, cli_age(l->now_ms > p->started_ms ? l->now_ms - p->started_ms : 0, age));
    if (p->running)
        table_cell(&l->table, "-");
    else
        table_cellf(&l->table, "%d%s", p->exit.exit_code, p->exit.timed_out ? " (timeout)" : "");
    table_cell(&l->table, p->command);
    return 0;
}

int cmd_procs(struct cli *cli, const struct opt_args *args)
{
    struct listing l = {
        .json = CAY_BUF(CLI_MAX_LISTING), .want_json = cli->json, .now_ms = cay_wall_ms()};
    autobuf struct cay_buf out = CAY_BUF(CLI_MAX_LISTING);
    table_init(&l.table, "PID STATE AGE EXIT COMMAND", CLI_MAX_LISTING);
    int code = CLI_FAILED;
    buf_str(&l.json, "[");
    if (cli_get(cli, args->operands[0]) == 0 &&
        cay_procs(cli->sandbox, add_proc, &l, &cli->err) == 0) {
        buf_str(&l.json, "]\n");
        if (!cli->json && table_print(&l.table, false, &out) < 0)
            out.failed = true;
        code = cli_print(cli, cli->json ? &l.json : &out);
    }
    table_done(&l.table);
    buf_done(&l.json);
    return code;
}

/* How the end of a stream that is not ours becomes an exit code. */
static int attach_code(struct cli *cli, enum pump_end end, const struct cay_exit *e)
{
    switch (end) {
    case PUMP_EXIT:
        cli_note_end(e);
        return e->exit_code;
    case PUMP_DONE:
    case PUMP_DETACHED:
        return 0;
    case PUMP_PIPE:
        return CLI_EXIT_SIGNAL + SIGPIPE;
    case PUMP_SIGNAL:
        return CLI_EXIT_SIGNAL + e->signal;
    case PUMP_TOO_LARGE:
    case PUMP_FAILED:
        return CLI_FAILED;
    }
    return cay_fail(&cli->err, CAY_E_INTERNAL, "the output ended in an unknown way");
}

/*
 * What was asked for by its offset and is not kept any more is an error; of what was printed long
 * before anybody asked, a remark is enough.
 */
static int check_whole(struct cli *cli, const struct pump *pump, int code)
{
    const char *why = cli_why_lost(pump->why);
    if (code != CLI_FAILED && pump->lost)
        return cay_fail(&cli->err, CAY_E_LOST, "%llu bytes of its output are not kept any more%s",
                        (unsigned long long)pump->lost, why);
    if (!cli->has_from && pump->start)
        cli_note("the first %llu bytes of its output are not kept any more%s",
                 (unsigned long long)pump->start, why);
    return code;
}

int cmd_attach(struct cli *cli, const struct opt_args *args)
{
    struct pump pump = {.signals = -1, .input = cli->interactive, .tty = cli->tty};
    uint64_t from = cli->has_from ? cli->from : CAY_FROM_KEPT;
    struct cay_exit e = {0};
    pid_t pid;
    if (parse_pid(args->operands[1], &pid, &cli->err) < 0 || cli_detach_keys(cli, &pump) < 0 ||
        cli_get(cli, args->operands[0]) < 0)
        return CLI_FAILED;
    if (cay_attach(cli->sandbox, pid, from, true, &pump.proc, &cli->err) < 0)
        return CLI_FAILED;
    pump.sandbox = cli->sandbox;
    if (cli->tty) {
        /* A raw terminal must be restored, so signals may not end us on the spot. */
        uint16_t rows, cols;
        pump.signals = pump_signals(&cli->err);
        pump_window(&rows, &cols);
        cay_proc_resize(pump.proc, rows, cols, NULL);
    }
    enum pump_end end = cli->tty && pump.signals < 0 ? PUMP_FAILED : pump_run(&pump, &e, &cli->err);
    int code = attach_code(cli, end, &e);
    if (end == PUMP_DETACHED)
        cli_left(cli, pump.proc);
    cay_proc_free(pump.proc);
    close_fd(&pump.signals);
    return check_whole(cli, &pump, code);
}

int cmd_wait(struct cli *cli, const struct opt_args *args)
{
    struct cay_exit e;
    pid_t pid;
    if (parse_pid(args->operands[1], &pid, &cli->err) < 0 || cli_get(cli, args->operands[0]) < 0)
        return CLI_FAILED;
    uint64_t timeout = cli->has_timeout ? cli->timeout_ms : UINT64_MAX;
    if (cay_wait(cli->sandbox, pid, timeout, &e, &cli->err) < 0) {
        if (cli->err.code != CAY_E_TIMEOUT)
            return CLI_FAILED;
        cay_fail(&cli->err, CAY_E_TIMEOUT, "process %ld of sandbox '%s' is still running",
                 (long)pid, cay_sandbox_id(cli->sandbox));
        cli_report(cli, &cli->err);
        return CLI_EXIT_TIMEOUT;
    }
    if (cli->json) {
        autobuf struct cay_buf out = CAY_BUF(4096);
        buf_str(&out, "{");
        json_exit(&out, &e);
        buf_str(&out, "}\n");
        if (cli_print(cli, &out) < 0)
            return CLI_FAILED;
    } else {
        cli_note_end(&e);
    }
    return e.exit_code;
}

int cmd_signal(struct cli *cli, const struct opt_args *args)
{
    pid_t pid;
    int signal;
    if (parse_pid(args->operands[1], &pid, &cli->err) < 0 ||
        parse_signal(args->operands[2], &signal, &cli->err) < 0 ||
        cli_get(cli, args->operands[0]) < 0)
        return CLI_FAILED;
    return cay_signal(cli->sandbox, pid, signal, cli->tree, &cli->err);
}

/* ---- logs ------------------------------------------------------------------------------------ */

/* Offsets where the last lines start: a ring, so that a long log costs no memory. */
struct tail {
    uint64_t *starts;
    size_t n, seen;
    bool in_line;
    uint64_t end;
};

static void tail_scan(struct tail *tail, const struct cay_event *event)
{
    for (size_t i = 0; i < event->size; i++) {
        if (!tail->in_line && tail->n)
            tail->starts[tail->seen++ % tail->n] = event->offset + i;
        tail->in_line = event->data[i] != '\n';
    }
    tail->end = event->offset + event->size;
}

/* Reads the log once without printing it, to find where its last lines start. */
static int find_tail(struct cli *cli, pid_t pid, uint64_t *from)
{
    struct cay_proc *proc = NULL;
    struct cay_event event;
    struct tail tail = {.n = (size_t)CAY_MIN(cli->tail, (uint64_t)MAX_TAIL)};
    autofree uint64_t *starts = tail.starts = calloc(tail.n ? tail.n : 1, sizeof(*starts));
    if (!starts)
        return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
    if (cay_attach(cli->sandbox, pid, CAY_FROM_KEPT, false, &proc, &cli->err) < 0)
        return -1;
    int got;
    while ((got = cay_proc_next(proc, -1, &event, &cli->err)) > 0 && event.kind != CAY_EVENT_EXIT)
        if (event.kind == CAY_EVENT_OUTPUT)
            tail_scan(&tail, &event);
        else
            tail.end = event.offset + event.size; /* it is told when the log is printed */
    cay_proc_free(proc);
    if (got < 0)
        return -1;
    if (tail.n == 0)
        *from = tail.end;
    else if (tail.seen > 0)
        *from = tail.starts[tail.seen > tail.n ? tail.seen % tail.n : 0];
    return 0;
}

int cmd_logs(struct cli *cli, const struct opt_args *args)
{
    struct pump pump = {.signals = -1};
    struct cay_exit e = {0};
    uint64_t from = CAY_FROM_KEPT;
    pid_t pid = 0;
    if (args->n > 1 && parse_pid(args->operands[1], &pid, &cli->err) < 0)
        return CLI_FAILED;
    if (cli_get(cli, args->operands[0]) < 0 || (cli->has_tail && find_tail(cli, pid, &from) < 0))
        return CLI_FAILED;
    if (cay_attach(cli->sandbox, pid, from, cli->follow, &pump.proc, &cli->err) < 0)
        return CLI_FAILED;
    enum pump_end end = pump_run(&pump, &e, &cli->err);
    int code = attach_code(cli, end, &e);
    if (end == PUMP_EXIT) /* of the command; what it printed could be read */
        code = 0;
    cay_proc_free(pump.proc);
    if (code != CLI_FAILED && pump.lost)
        return cay_fail(&cli->err, CAY_E_LOST,
                        "%llu bytes of the log were lost while it was read%s",
                        (unsigned long long)pump.lost,
                        pump.why == CAY_E_NO_SPACE ? cli_why_lost(pump.why) : "");
    /* The end of a sandbox is the end of its log; this one came without it. */
    if (code == CLI_FAILED && cli->err.code == CAY_E_GONE)
        cay_fail_context(&cli->err, "the end of the log is lost");
    return code;
}
