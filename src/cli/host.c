/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a command is done: here, or by a cayd (--host, $CAY_HOST).
 *
 * One source, two programs. `cay` is linked with libcay, static and quick to start; what is for
 * another host it hands over to `cay-remote`, which is linked with src/remote instead and has
 * CAY_REMOTE set to 1. This file and audit.c are all that differs between the two.
 */
#include "cli/cli.h"

#include "base/libexec.h"
#include "base/limits.h"

#include <string.h>

const struct cli_host_option cli_host_options[] = {
    {OPT("host", 0, OPT_STR, 0, "HOST",
         "use the cayd there: unix:PATH, http://HOST[:PORT], https://HOST[:PORT]"),
     "CAY_HOST"},
    {OPT("token-file", 0, OPT_STR, 0, "FILE", "the token for it; or $CAY_TOKEN"), "CAY_TOKEN_FILE"},
    {.variable = NULL},
};

/* Sets the variable of the option at argv[1]. The number of its words; 0: it is none; -1. */
static int take_option(char **argv, struct cay_error *err)
{
    const char *word = argv[1];
    if (strncmp(word, "--", 2) != 0)
        return 0;
    for (const struct cli_host_option *o = cli_host_options; o->opt.name; o++) {
        size_t n = 2 + strlen(o->opt.name);
        if (strncmp(word + 2, o->opt.name, n - 2) != 0 || (word[n] && word[n] != '='))
            continue;
        const char *value = word[n] ? word + n + 1 : argv[2];
        if (!value)
            return cay_fail(err, CAY_E_INVALID, "option '--%s' needs a value: %s", o->opt.name,
                            o->opt.metavar);
        if (setenv(o->variable, value, 1) < 0)
            return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
        return word[n] ? 1 : 2;
    }
    return 0;
}

int cli_exec(struct cli *cli, const char *program, const char *what, char *const *argv)
{
    char path[CAY_MAX_PATH];
    libexec_path(path, sizeof(path), program);
    execv(path, argv);
    return cay_fail_errno(
        &cli->err, errno,
        "%s needs the program %s ('make' builds it, 'make install' puts it there, "
        "$CAY_LIBEXEC_DIR says where it is)",
        what, path);
}

/*
 * Who has a token means a cayd: what was meant for that one must not happen here. An empty
 * $CAY_HOST says that it is this machine that is meant.
 */
int cli_check_here(struct cli *cli)
{
    static const char *const names[] = {"CAY_TOKEN", "CAY_TOKEN_FILE"};
    if (CAY_REMOTE || getenv("CAY_HOST"))
        return 0;
    for (size_t i = 0; i < CAY_COUNT(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return cay_fail(&cli->err, CAY_E_INVALID,
                            "$%s is set, but no cayd is named: use --host or $CAY_HOST (CAY_HOST= "
                            "means this machine)",
                            names[i]);
    }
    return 0;
}

int cli_host(struct cli *cli, char **argv)
{
    bool token = false;
    int n = 0;
    while (argv[0] && argv[1] && (n = take_option(argv, &cli->err)) > 0) {
        token = token || strncmp(argv[1], "--token", strlen("--token")) == 0;
        for (char **at = argv + 1; (at[0] = at[n]); at++)
            continue;
    }
    if (n < 0)
        return -1;
    const char *host = getenv("CAY_HOST");
    bool elsewhere = host && *host;
    if (elsewhere && !CAY_REMOTE)
        return cli_exec(cli, "cay-remote", "--host", argv);
    if (token && !elsewhere)
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "--token-file is for a cayd, and none is named: use --host or $CAY_HOST");
    return 0;
}
