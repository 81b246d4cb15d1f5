/* SPDX-License-Identifier: Apache-2.0 */
/* ps, inspect, stats, doctor: listings for people and, with --json, for programs. */
#include "cli/cli.h"

#include "base/table.h"

#include <string.h>
#include <time.h>

struct listing {
    struct cli *cli;
    struct table table;
    struct cay_buf out;
    uint64_t now_ms;
    int worst; /* doctor */
    size_t n;  /* checks of the doctor */
};

static void begin(struct listing *l, struct cli *cli, const char *header)
{
    *l = (struct listing){.cli = cli, .out = CAY_BUF(CLI_MAX_LISTING), .now_ms = cay_wall_ms()};
    table_init(&l->table, header, CLI_MAX_LISTING);
    if (cli->json)
        buf_str(&l->out, "[");
}

/* Prints what was collected, unless `failed`. */
static int end(struct listing *l, bool failed)
{
    struct cli *cli = l->cli;
    int code = CLI_FAILED;
    if (!failed) {
        if (cli->json)
            buf_str(&l->out, "]\n");
        else if (!cli->quiet && table_print(&l->table, false, &l->out) < 0)
            l->out.failed = true;
        code = cli_print(cli, &l->out);
    }
    table_done(&l->table);
    buf_done(&l->out);
    return code;
}

/* ---- ps, inspect ----------------------------------------------------------------------------- */

static void add_labels(struct table *table, char *const *labels)
{
    autobuf struct cay_buf all = CAY_BUF(1u << 20);
    for (char *const *l = labels; l && *l; l++)
        buf_fmt(&all, "%s%s", l == labels ? "" : ",", *l);
    const char *text = all.size ? buf_cstr(&all) : NULL;
    table_cell(table, text ? text : "-");
}

static int add_sandbox(const struct cay_info *info, void *data)
{
    struct listing *l = data;
    char age[CLI_SHORT];
    if (l->cli->quiet && l->cli->json) {
        json_comma(&l->out);
        buf_json(&l->out, info->id);
        return 0;
    }
    if (l->cli->quiet) {
        buf_fmt(&l->out, "%s\n", info->id);
        return 0;
    }
    if (l->cli->json) {
        json_comma(&l->out);
        buf_str(&l->out, "{");
        json_info(&l->out, info);
        buf_str(&l->out, "}");
        return 0;
    }
    table_cell(&l->table, info->id);
    table_cell(&l->table, cay_state_name(info->state));
    /* Of one that was lost before it wrote its status neither is known. */
    table_cell(&l->table, *info->image ? info->image : "-");
    if (info->created_ms)
        table_cellf(&l->table, "%s ago",
                    cli_age(l->now_ms > info->created_ms ? l->now_ms - info->created_ms : 0, age));
    else
        table_cell(&l->table, "-");
    if (info->ttl_left_ms)
        table_cell(&l->table, cli_age(info->ttl_left_ms, age));
    else
        table_cell(&l->table, "-");
    table_cellf(&l->table, "%u", (unsigned)info->processes);
    add_labels(&l->table, info->labels);
    table_cell(&l->table, strcmp(info->reason, "up") == 0 ? "-" : info->reason);
    return 0;
}

int cmd_ps(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    struct listing l;
    struct cay_filter filter = {.all = cli->all, .labels = cli->labels};
    begin(&l, cli, "ID STATE IMAGE CREATED TTL PROCS LABELS REASON");
    bool failed = cli_open(cli) < 0 || cay_list(cli->cay, &filter, add_sandbox, &l, &cli->err) < 0;
    return end(&l, failed);
}

/* The same as NAME_ms, for people. */
static void add_time(struct cay_buf *out, const char *name, uint64_t ms)
{
    char text[40];
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    bool known = ms && gmtime_r(&seconds, &tm);
    if (known)
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_str(out, name, known ? text : NULL);
}

int cmd_inspect(struct cli *cli, const struct opt_args *args)
{
    autobuf struct cay_buf json = CAY_BUF(CLI_MAX_LISTING), pretty = CAY_BUF(CLI_MAX_LISTING);
    autofree char *spec = NULL;
    struct cay_info info = {0};
    if (cli_get(cli, args->operands[0]) < 0 || cay_inspect(cli->sandbox, &spec, &cli->err) < 0 ||
        cay_info(cli->sandbox, &info, &cli->err) < 0)
        return CLI_FAILED;
    buf_str(&json, "{");
    json_info(&json, &info);
    add_time(&json, "created", info.created_ms);
    add_time(&json, "ended", info.ended_ms);
    cay_info_done(&info);
    json_key(&json, "spec");
    buf_str(&json, spec);
    buf_str(&json, "}");
    if (cli->json)
        buf_str(&json, "\n");
    else if (!buf_failed(&json))
        json_pretty(&pretty, json.data, json.size);
    return cli_print(cli, cli->json || buf_failed(&json) ? &json : &pretty);
}

/* ---- doctor ---------------------------------------------------------------------------------- */

static const struct {
    const char *word, *colour;
} marks[] = {{"ok", "\033[32m"}, {"loss", "\033[33m"}, {"no", "\033[31m"}};

static int add_check(const struct cay_check *check, void *data)
{
    struct listing *l = data;
    size_t level = (size_t)CAY_MIN(CAY_MAX(check->level, 0), 2);
    l->worst = CAY_MAX(l->worst, (int)level);
    l->n++;
    if (l->cli->json) {
        json_comma(&l->out);
        buf_str(&l->out, "{");
        json_str(&l->out, "name", check->name);
        json_str(&l->out, "level", marks[level].word);
        json_str(&l->out, "finding", check->finding);
        json_str(&l->out, "advice", check->advice);
        buf_str(&l->out, "}");
        return 0;
    }
    bool colour = cli_colour(STDOUT_FILENO);
    buf_fmt(&l->out, "%s%-4s%s  %-18s  %s\n", colour ? marks[level].colour : "", marks[level].word,
            colour ? "\033[0m" : "", check->name, check->finding);
    if (check->advice && *check->advice)
        buf_fmt(&l->out, "%-4s  %-18s  -> %s\n", "", "", check->advice);
    return 0;
}

int cmd_doctor(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    struct listing l;
    begin(&l, cli, "");
    cli->quiet = true; /* no table: advice stands below its line */
    bool failed = cli_open(cli) < 0 || cay_doctor(cli->cay, add_check, &l, &cli->err) < 0;
    int worst = l.worst;
    if (!failed && l.n == 0)
        failed =
            cay_fail(&cli->err, CAY_E_DENIED,
                     "the daemon tells nothing of its host to tenants: ask with the operator's "
                     "token, or there with 'cay doctor'") < 0;
    return end(&l, failed) < 0 ? CLI_FAILED : worst >= 2;
}
