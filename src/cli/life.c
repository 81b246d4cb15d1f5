/* SPDX-License-Identifier: Apache-2.0 */
/* pause, resume, stop, kill, rm, update: the life of sandboxes. */
#include "cli/cli.h"

/* Time between SIGTERM and SIGKILL, as other tools have it. */
#define DEFAULT_GRACE_MS 10000

/* Does `act` on every id, reports each failure and goes on: the others are meant as well. */
static int for_each(struct cli *cli, const struct opt_args *args,
                    int (*act)(struct cli *cli, const char *id))
{
    int code = 0;
    for (size_t i = 0; i < args->n; i++) {
        if (act(cli, args->operands[i]) == 0)
            continue;
        if (i + 1 == args->n)
            return CLI_FAILED;
        cli_report(cli, &cli->err);
        code = CLI_EXIT_ERROR;
    }
    return code;
}

static int pause_one(struct cli *cli, const char *id)
{
    return cli_get(cli, id) < 0 ? -1 : cay_pause(cli->sandbox, &cli->err);
}

static int resume_one(struct cli *cli, const char *id)
{
    return cli_get(cli, id) < 0 ? -1 : cay_resume(cli->sandbox, &cli->err);
}

static int stop_one(struct cli *cli, const char *id)
{
    uint64_t grace = cli->has_grace ? cli->grace_ms : DEFAULT_GRACE_MS;
    return cli_get(cli, id) < 0 ? -1 : cay_stop(cli->sandbox, grace, &cli->err);
}

static int kill_one(struct cli *cli, const char *id)
{
    return cli_get(cli, id) < 0 ? -1 : cay_kill(cli->sandbox, &cli->err);
}

static int remove_one(struct cli *cli, const char *id)
{
    char room[CAY_MAX_ID];
    if (cli_open(cli) < 0 || !(id = cli_full_id(cli, id, room)))
        return -1;
    if (cay_remove(cli->cay, id, cli->force, &cli->err) == 0)
        return 0;
    return cli->force && cli->err.code == CAY_E_NOT_FOUND ? 0 : -1;
}

int cmd_pause(struct cli *cli, const struct opt_args *args)
{
    return for_each(cli, args, pause_one);
}

int cmd_resume(struct cli *cli, const struct opt_args *args)
{
    return for_each(cli, args, resume_one);
}

int cmd_stop(struct cli *cli, const struct opt_args *args)
{
    return for_each(cli, args, stop_one);
}

int cmd_kill(struct cli *cli, const struct opt_args *args)
{
    return for_each(cli, args, kill_one);
}

int cmd_rm(struct cli *cli, const struct opt_args *args)
{
    return for_each(cli, args, remove_one);
}

int cmd_update(struct cli *cli, const struct opt_args *args)
{
    if (!cli->lifetime.set_ttl && !cli->lifetime.set_idle)
        return cay_fail(&cli->err, CAY_E_INVALID, "nothing to change: give --ttl or --idle");
    if (cli_get(cli, args->operands[0]) < 0)
        return CLI_FAILED;
    return cay_set_lifetime(cli->sandbox, &cli->lifetime, &cli->err);
}
