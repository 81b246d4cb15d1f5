/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay: finds the command, parses its options, runs it, prints its error, gives its exit code.
 * Everything that is said about the command line is said in commands.c.
 */
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>

static const struct opt common_options[] = {
    OPT("help", 'h', OPT_FLAG, offsetof(struct cli, help), NULL, "explain this command"),
};

void cli_groups(struct cli *cli, const struct command *command, struct opt_group *groups)
{
    size_t n = 0;
    if (command->spec)
        groups[n++] = (struct opt_group){opt_spec, opt_spec_count, &cli->spec};
    if (command->n_options)
        groups[n++] = (struct opt_group){command->options, command->n_options, cli};
    groups[n++] = (struct opt_group){common_options, CAY_COUNT(common_options), cli};
    groups[n] = (struct opt_group){0};
}

static const struct command *find(const struct command *table, const char *name)
{
    for (const struct command *c = table; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int unknown_command(struct cli *cli, const struct command *parent, const char *name)
{
    const char *prefix = parent ? parent->name : "", *blank = parent ? " " : "";
    if (name[0] == '-')
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "unknown option '%.64s'; options follow the command: cay %s%sCOMMAND %.64s",
                        name, prefix, blank, name);
    const char *hint = parent ? NULL : cli_hint_verb(name);
    if (hint)
        return cay_fail(&cli->err, CAY_E_INVALID, "unknown command '%s'; %s", name, hint);
    struct opt_near near = {.word = name};
    const struct command *table = parent ? parent->sub : cli_commands;
    for (const struct command *c = table; c->name; c++)
        opt_near_try(&near, c->name);
    const char *best = opt_near_best(&near);
    if (best && !find(table, best)->destroys)
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "unknown command '%s%s%.64s'; did you mean '%s%s%s'?", prefix, blank, name,
                        prefix, blank, best);
    return cay_fail(&cli->err, CAY_E_INVALID,
                    "unknown command '%s%s%.64s'; 'cay help%s%s' lists them", prefix, blank, name,
                    blank, prefix);
}

/* The operands are not what the command takes. */
static int check_operands(struct cli *cli, const struct command *parent,
                          const struct command *command, const struct opt_args *args)
{
    if (args->n >= command->min && args->n <= command->max)
        return 0;
    autobuf struct cay_buf usage = CAY_BUF(4096);
    cli_usage(&usage, parent, command);
    if (args->n < command->min)
        return cay_fail(&cli->err, CAY_E_INVALID, "missing argument; usage: %s", buf_cstr(&usage));
    return cay_fail(&cli->err, CAY_E_INVALID, "unexpected argument '%.64s'; usage: %s",
                    args->operands[command->max], buf_cstr(&usage));
}

/* Options are read up to the first bad one; who asked for JSON after it wants the error so, too. */
static bool wants_json(char *const *argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (strcmp(*argv, "--json") == 0)
            return true;
    return false;
}

static int run_command(struct cli *cli, const struct command *parent, const struct command *command,
                       char **argv)
{
    struct opt_group groups[4];
    struct opt_args args;
    cli->command = command;
    cli_groups(cli, command, groups);
    size_t leading = command->command_at ? command->command_at - 1 : SIZE_MAX;
    if (opt_parse(&cli->arena, groups, argv, leading, &args, &cli->err) < 0) {
        cli->json = cli->json || wants_json(argv);
        cli_hint_option(command, &cli->err);
        return CLI_FAILED;
    }
    if (cli->help)
        return cli_help(cli, parent, command);
    if (check_operands(cli, parent, command, &args) < 0)
        return CLI_FAILED;
    return command->run(cli, &args);
}

static int dispatch(struct cli *cli, char **argv)
{
    static const struct {
        const char *option, *command;
    } aliases[] = {{"--help", "help"}, {"-h", "help"}, {"--version", "version"}};
    if (!argv[0] || !argv[1])
        return cay_fail(&cli->err, CAY_E_INVALID, "expected a command; 'cay help' lists them");
    const char *name = argv[1];
    for (size_t i = 0; i < CAY_COUNT(aliases); i++)
        if (strcmp(name, aliases[i].option) == 0)
            name = aliases[i].command;
    const struct command *command = find(cli_commands, name);
    if (!command)
        return unknown_command(cli, NULL, name);
    if (!command->sub)
        return run_command(cli, NULL, command, argv + 2);

    if (!argv[2])
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "expected a command after '%s'; 'cay help %s' lists them", name, name);
    if (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)
        return cli_help(cli, NULL, command);
    const struct command *sub = find(command->sub, argv[2]);
    return sub ? run_command(cli, command, sub, argv + 3) : unknown_command(cli, command, argv[2]);
}

/* As a shell tells it: 127 the command is not there, 126 it cannot be run, 125 all
 * else is cay's. */
static int exit_code_of(const struct cay_error *err)
{
    if (strncmp(err->text, "cannot run", strlen("cannot run")) != 0)
        return CLI_EXIT_ERROR;
    if (err->code == CAY_E_NOT_FOUND && err->sys_errno == ENOENT)
        return CLI_EXIT_NOT_FOUND;
    static const int cannot[] = {EACCES, EPERM, ENOEXEC, EISDIR, ENOTDIR, ELOOP, ETXTBSY};
    for (size_t i = 0; i < CAY_COUNT(cannot); i++)
        if (err->sys_errno == cannot[i])
            return CLI_EXIT_CANNOT_RUN;
    return err->code == CAY_E_DENIED ? CLI_EXIT_CANNOT_RUN : CLI_EXIT_ERROR;
}

/* A socket that became descriptor 1 would be sent what is meant for people. Not writable: what is
 * printed to a closed output is lost, and that is an error. */
static void fill_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) /* NOLINT: to be inherited */
            _exit(CLI_EXIT_ERROR);
}

int main(int argc, char **argv)
{
    struct cli cli = {.mode = CLI_NO_MODE};
    (void)argc;
    fill_standard_fds();
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit is an error of the write (EFBIG) */
    int code = cli_host(&cli, argv) < 0 ? CLI_FAILED : dispatch(&cli, argv);
    if (code == CLI_FAILED) {
        code = exit_code_of(&cli.err);
        cli_report(&cli, &cli.err);
    }
    cay_sandbox_free(cli.sandbox);
    cay_close(cli.cay);
    opt_arena_done(&cli.arena);
    return code;
}
