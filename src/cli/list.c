/* SPDX-License-Identifier: Apache-2.0 */
/* ps, inspect, stats, doctor: listings for people and, with --json, for programs. */
#include "cli/cli.h"

#include "base/table.h"

#include <string.h>

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
    table_cellf(&l->table, "%u", (unsigned)info->processes);
    table_cell(&l->table, info->reason);
    return 0;
}

int cmd_ps(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    struct listing l;
    struct cay_filter filter = {.all = cli->all, .labels = cli->labels};
    begin(&l, cli, "ID STATE IMAGE CREATED PROCS REASON");
    bool failed = cli_open(cli) < 0 || cay_list(cli->cay, &filter, add_sandbox, &l, &cli->err) < 0;
    return end(&l, failed);
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

/* ---- stats ----------------------------------------------------------------------------------- */

static void stats_object(struct cay_buf *out, const char *id, const struct cay_stats *s)
{
    json_comma(out);
    buf_str(out, "{");
    json_stats(out, id, s);
    buf_str(out, "}");
}

static const char *limit_text(uint64_t value, char buffer[static CLI_SHORT])
{
    return value == 0 || value == UINT64_MAX ? "-" : cli_size(value, buffer);
}

static void stats_row(struct table *t, const char *id, const struct cay_stats *s)
{
    char a[CLI_SHORT], b[CLI_SHORT];
    table_cell(t, id);
    table_cellf(t, "%llu.%02llus", (unsigned long long)(s->cpu_us / 1000000),
                (unsigned long long)(s->cpu_us / 10000 % 100));
    table_cellf(t, "%s/%s", cli_size(s->memory, a), limit_text(s->memory_max, b));
    table_cell(t, cli_size(s->memory_peak, a));
    if (s->pids_max && s->pids_max != UINT64_MAX)
        table_cellf(t, "%llu/%llu", (unsigned long long)s->pids, (unsigned long long)s->pids_max);
    else
        table_cellf(t, "%llu/-", (unsigned long long)s->pids);
    table_cellf(t, "%s/%s", cli_size(s->disk, a), limit_text(s->disk_max, b));
    table_cellf(t, "%s/%s", cli_size(s->io_read, a), cli_size(s->io_write, b));
    table_cellf(t, "%llu", (unsigned long long)s->oom_kills);
}

static int add_stats(struct listing *l, const char *id)
{
    struct cay_stats s;
    if (cli_get(l->cli, id) < 0 || cay_stats(l->cli->sandbox, &s, &l->cli->err) < 0)
        return -1;
    if (l->cli->json)
        stats_object(&l->out, id, &s);
    else
        stats_row(&l->table, id, &s);
    return 0;
}

/* One that ended since the listing began has no stats: no reason to fail for the others. */
static int add_listed_stats(const struct cay_info *info, void *data)
{
    add_stats(data, info->id);
    return 0;
}

int cmd_stats(struct cli *cli, const struct opt_args *args)
{
    struct listing l;
    struct cay_filter filter = {0};
    begin(&l, cli, "ID CPU MEMORY PEAK PIDS DISK READ/WRITE OOM");
    if (args->n == 0) {
        bool failed =
            cli_open(cli) < 0 || cay_list(cli->cay, &filter, add_listed_stats, &l, &cli->err) < 0;
        return end(&l, failed);
    }
    bool failed = add_stats(&l, args->operands[0]) < 0;
    if (!failed && cli->json) {
        /* One was asked for: an object, not a list of one. */
        buf_eat(&l.out, 1);
        buf_str(&l.out, "\n");
        int code = cli_print(cli, &l.out);
        end(&l, true);
        return code;
    }
    return end(&l, failed);
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
