/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit: who did what. The log belongs to cayd; on its host the program cay-audit reads it, with
 * the same options, and from elsewhere it is asked for.
 */
#include "cli/cli.h"

#if CAY_REMOTE

#include "base/table.h"
#include "remote/audit.h"

#include <stdio.h>
#include <string.h>

#define MAX_SUMMARY 200

struct printer {
    struct cli *cli;
    bool headed;
};

/* Widths are fixed, as those of cay-audit: rows are printed as they come. */
static int print_row(struct cli *cli, const char *const cells[6])
{
    static const int widths[6] = {20, 16, 9, 24, 9, 0};
    autobuf struct cay_buf row = CAY_BUF(1u << 20);
    for (size_t i = 0; i < CAY_COUNT(widths); i++) {
        bool last = i + 1 == CAY_COUNT(widths);
        bool cut = last && strlen(cells[i]) > MAX_SUMMARY;
        buf_fmt(&row, "%-*.*s%s", widths[i], cut ? MAX_SUMMARY : INT32_MAX,
                *cells[i] || last ? cells[i] : "-", last ? cut ? "..." : "" : "  ");
    }
    if (!buf_failed(&row))
        table_plain(row.data, row.size);
    while (row.size && row.data[row.size - 1] == ' ')
        row.size--;
    buf_str(&row, "\n");
    return cli_print(cli, &row);
}

static int print_line(const struct remote_audit_line *line, void *data)
{
    static const char *const header[6] = {"TIME", "WHO", "ACTION", "SANDBOX", "RESULT", "SUMMARY"};
    struct printer *p = data;
    char time[24], who[1024];
    if (p->cli->json) {
        autobuf struct cay_buf out = CAY_BUF(CLI_MAX_LISTING);
        buf_add(&out, line->json, line->size);
        buf_str(&out, "\n");
        return cli_print(p->cli, &out);
    }
    if (!p->headed && print_row(p->cli, header) < 0)
        return -1;
    p->headed = true;
    snprintf(time, sizeof(time), "%.19sZ", line->time);
    snprintf(who, sizeof(who), "%s%s%s", line->who, *line->tenant ? "@" : "", line->tenant);
    const char *const cells[6] = {time,          who,          line->action,
                                  line->sandbox, line->result, line->summary};
    return print_row(p->cli, cells);
}

int cmd_audit(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    const struct remote_audit query = {
        .since = cli->since,
        .until = cli->until,
        .sandbox = cli->spec.id,
        .tenant = cli->tenant,
        .label = cli->label,
        .action = cli->action,
        .limit = cli->limit,
    };
    struct printer p = {.cli = cli};
    if (cli->verify || cli->follow)
        return cay_fail(&cli->err, CAY_E_UNSUPPORTED,
                        "--%s reads the files of the log: use it on the host of cayd",
                        cli->verify ? "verify" : "follow");
    if (cli_open(cli) < 0)
        return CLI_FAILED;
    struct cay_error why = {0};
    if (remote_audit(cli->cay, &query, print_line, &p, &why) < 0) {
        cli->err = why;
        return CLI_FAILED;
    }
    return cli->err.code ? CLI_FAILED : 0; /* a line could not be written */
}

#else

#include <stdio.h>
#include <string.h>

/* What was given, as arguments again: the tables here and there are the same. */
int cmd_audit(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    const struct {
        const char *name, *value;
    } values[] = {
        {"--since", cli->since},   {"--until", cli->until}, {"--id", cli->spec.id},
        {"--tenant", cli->tenant}, {"--label", cli->label}, {"--action", cli->action},
    };
    const struct {
        const char *name;
        bool set;
    } flags[] = {{"--follow", cli->follow}, {"--json", cli->json}, {"--verify", cli->verify}};
    char limit[24];
    const char *argv[2 * CAY_COUNT(values) + CAY_COUNT(flags) + 4];
    size_t n = 0;
    argv[n++] = "cay-audit";
    for (size_t i = 0; i < CAY_COUNT(values); i++)
        if (values[i].value) {
            argv[n++] = values[i].name;
            argv[n++] = values[i].value;
        }
    for (size_t i = 0; i < CAY_COUNT(flags); i++)
        if (flags[i].set)
            argv[n++] = flags[i].name;
    if (cli->limit) {
        snprintf(limit, sizeof(limit), "%llu", (unsigned long long)cli->limit);
        argv[n++] = "--limit";
        argv[n++] = limit;
    }
    argv[n] = NULL;
    return cli_exec(cli, "cay-audit", "audit", (char *const *)argv);
}

#endif
