/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats: what sandboxes use, once or again and again. The kernel counts CPU time since the birth of
 * a sandbox; what it uses now is the difference of two looks, so the table takes two.
 */
#include "cli/cli.h"

#include "base/limits.h"
#include "base/table.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* Between the two looks of a table that is printed once. */
#define FIRST_MS 200
#define EVERY_MS 2000

/* The last look at one sandbox. */
struct look {
    char id[CAY_MAX_ID];
    uint64_t cpu_us, at_us;
    bool seen; /* in this round */
};

struct stats {
    struct cli *cli;
    struct look *looks; /* owned */
    size_t n, capacity;
    struct table table;
    struct cay_buf json;
    bool print; /* else it is only looked at */
};

/* The look at `id`, made if there is none yet; NULL: no memory. */
static struct look *find_look(struct stats *s, const char *id)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->looks[i].id, id) == 0)
            return &s->looks[i];
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 16;
        struct look *looks = realloc(s->looks, capacity * sizeof(*looks));
        if (!looks)
            return NULL;
        s->looks = looks;
        s->capacity = capacity;
    }
    struct look *look = &s->looks[s->n++];
    *look = (struct look){0};
    snprintf(look->id, sizeof(look->id), "%s", id);
    return look;
}

static void forget_unseen(struct stats *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->looks[i].seen) {
            s->looks[n] = s->looks[i];
            s->looks[n++].seen = false;
        }
    s->n = n;
}

static const char *limit_text(uint64_t value, char buffer[static CLI_SHORT])
{
    return value == 0 || value == UINT64_MAX ? "-" : cli_size(value, buffer);
}

/* Tenths of a percent. */
static void percent_cell(struct table *t, uint64_t part, uint64_t whole)
{
    if (whole == 0 || whole == UINT64_MAX) {
        table_cell(t, "-");
        return;
    }
    uint64_t tenths = (uint64_t)((double)part * 1000.0 / (double)whole + 0.5);
    table_cellf(t, "%llu.%llu%%", (unsigned long long)(tenths / 10),
                (unsigned long long)(tenths % 10));
}

static void row(struct table *t, const char *id, const struct look *before, uint64_t now_us,
                const struct cay_stats *s)
{
    char a[CLI_SHORT], b[CLI_SHORT];
    table_cell(t, id);
    bool known = before->at_us && s->cpu_us >= before->cpu_us;
    percent_cell(t, known ? s->cpu_us - before->cpu_us : 0, known ? now_us - before->at_us : 0);
    table_cellf(t, "%llu.%02llus", (unsigned long long)(s->cpu_us / 1000000),
                (unsigned long long)(s->cpu_us / 10000 % 100));
    table_cellf(t, "%s/%s", cli_size(s->memory, a), limit_text(s->memory_max, b));
    percent_cell(t, s->memory, s->memory_max);
    table_cell(t, cli_size(s->memory_peak, a));
    if (s->pids_max && s->pids_max != UINT64_MAX)
        table_cellf(t, "%llu/%llu", (unsigned long long)s->pids, (unsigned long long)s->pids_max);
    else
        table_cellf(t, "%llu/-", (unsigned long long)s->pids);
    table_cellf(t, "%s/%s", cli_size(s->disk, a), limit_text(s->disk_max, b));
    table_cellf(t, "%s/%s", cli_size(s->io_read, a), cli_size(s->io_write, b));
    table_cellf(t, "%llu", (unsigned long long)s->oom_kills);
}

/* Of one that was asked for. */
static int look_at(struct stats *s, const char *given)
{
    struct cli *cli = s->cli;
    struct cay_stats stats;
    if (cli_get(cli, given) < 0 || cay_stats(cli->sandbox, &stats, &cli->err) < 0)
        return -1;
    const char *id = cay_sandbox_id(cli->sandbox);
    uint64_t now = cay_now_us();
    struct look *look = find_look(s, id);
    if (!look)
        return cay_fail(&cli->err, CAY_E_NO_SPACE, "out of memory");
    if (s->print && cli->json) {
        json_comma(&s->json);
        buf_str(&s->json, "{");
        json_stats(&s->json, id, &stats);
        buf_str(&s->json, "}");
    } else if (s->print) {
        row(&s->table, id, look, now, &stats);
    }
    look->cpu_us = stats.cpu_us;
    look->at_us = now;
    look->seen = true;
    return 0;
}

/* One that ended since the listing began has no stats: no reason to fail for the others. */
static int look_at_listed(const struct cay_info *info, void *data)
{
    look_at(data, info->id);
    return 0;
}

static int print_round(struct stats *s, bool list)
{
    struct cli *cli = s->cli;
    autobuf struct cay_buf out = CAY_BUF(CLI_MAX_LISTING);
    if (cli->watch && !cli->json && isatty(STDOUT_FILENO))
        buf_str(&out, "\033[H\033[J");
    if (cli->json)
        /* One was asked for: an object, not a list of one. */
        buf_fmt(&out, "%s%.*s%s\n", list ? "[" : "", (int)s->json.size, s->json.data,
                list ? "]" : "");
    else if (table_print(&s->table, false, &out) < 0)
        out.failed = true;
    if (cli->watch && !cli->json && !isatty(STDOUT_FILENO))
        buf_str(&out, "\n");
    return cli_print(cli, &out);
}

/* Looks once at all that are meant, and prints what it saw if s->print. */
static int look_around(struct stats *s, const struct opt_args *args)
{
    struct cli *cli = s->cli;
    struct cay_filter filter = {0};
    table_init(&s->table, "ID CPU% CPU MEMORY MEM% PEAK PIDS DISK READ/WRITE OOM", CLI_MAX_LISTING);
    s->json = CAY_BUF(CLI_MAX_LISTING);
    int result = 0;
    if (args->n == 0 &&
        (cli_open(cli) < 0 || cay_list(cli->cay, &filter, look_at_listed, s, &cli->err) < 0))
        result = -1;
    for (size_t i = 0; i < args->n && result == 0; i++)
        result = look_at(s, args->operands[i]);
    if (result == 0 && s->print)
        result = print_round(s, args->n != 1);
    table_done(&s->table);
    buf_done(&s->json);
    forget_unseen(s);
    return result;
}

static void pass(uint64_t ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        continue;
}

int cmd_stats(struct cli *cli, const struct opt_args *args)
{
    struct stats s = {.cli = cli};
    int result = 0;
    if (!cli->json) {
        result = look_around(&s, args);
        pass(result == 0 ? FIRST_MS : 0);
    }
    s.print = true;
    if (result == 0)
        result = look_around(&s, args);
    while (result == 0 && cli->watch) {
        pass(cli->interval_ms ? cli->interval_ms : EVERY_MS);
        result = look_around(&s, args);
    }
    free(s.looks);
    return result < 0 ? CLI_FAILED : 0;
}
