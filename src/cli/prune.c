/* SPDX-License-Identifier: Apache-2.0 */
/* prune: removes the records of sandboxes that have ended. What runs is never touched. */
#include "cli/cli.h"

#include "base/limits.h"

#include <stdio.h>
#include <string.h>

struct prune {
    struct cli *cli;
    char (*ids)[CAY_MAX_ID]; /* owned */
    size_t n, capacity;
    uint64_t now_ms;
};

static int collect(const struct cay_info *info, void *data)
{
    struct prune *p = data;
    uint64_t age = p->now_ms > info->ended_ms ? p->now_ms - info->ended_ms : 0;
    if (info->state < CAY_STATE_EXITED || age < p->cli->older_ms)
        return 0;
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 64;
        void *ids = realloc(p->ids, capacity * sizeof(*p->ids));
        if (!ids)
            return cay_fail(&p->cli->err, CAY_E_NO_SPACE, "out of memory");
        p->ids = ids;
        p->capacity = capacity;
    }
    snprintf(p->ids[p->n++], sizeof(*p->ids), "%s", info->id);
    return 0;
}

/* Without force: one that was made again under the same name meanwhile is refused. */
static bool removed(struct prune *p, const char *id, int *code)
{
    struct cli *cli = p->cli;
    if (cli->dry_run || cay_remove(cli->cay, id, false, &cli->err) == 0)
        return true;
    if (cli->err.code != CAY_E_NOT_FOUND && cli->err.code != CAY_E_CONFLICT) {
        cli_report(cli, &cli->err);
        *code = CLI_EXIT_ERROR;
    }
    return false;
}

int cmd_prune(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    struct prune p = {.cli = cli, .now_ms = cay_wall_ms()};
    struct cay_filter filter = {.all = true, .labels = cli->labels};
    autobuf struct cay_buf out = CAY_BUF(CLI_MAX_LISTING);
    int code = 0;
    size_t n = 0;
    if (cli_open(cli) < 0 || cay_list(cli->cay, &filter, collect, &p, &cli->err) < 0 ||
        cli->err.code) {
        free(p.ids);
        return CLI_FAILED;
    }
    buf_str(&out, cli->json ? "{\"removed\":[" : "");
    for (size_t i = 0; i < p.n; i++) {
        if (!removed(&p, p.ids[i], &code))
            continue;
        n++;
        if (cli->json)
            json_comma(&out);
        if (cli->json)
            buf_json(&out, p.ids[i]);
        else
            buf_fmt(&out, "%s\n", p.ids[i]);
    }
    free(p.ids);
    if (cli->json)
        buf_fmt(&out, "],\"dry_run\":%s}\n", cli->dry_run ? "true" : "false");
    else
        buf_fmt(&out, "%zu ended %s %s\n", n, n == 1 ? "sandbox" : "sandboxes",
                cli->dry_run ? "would be removed" : "removed");
    return cli_print(cli, &out) < 0 ? CLI_FAILED : code;
}
