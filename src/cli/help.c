/* SPDX-License-Identifier: Apache-2.0 */
/* help and version: everything said here comes from the tables of commands.c. */
#include "cli/cli.h"
#include "cli/man.h"

#include "base/parse.h"

#include <string.h>
#include <sys/ioctl.h>

/* Where the explanation of an option starts. */
#define HELP_COLUMN 32
/* Text is wrapped to the terminal, within these. */
#define MIN_WIDTH 50
#define MAX_WIDTH 100

/* Of our terminal; of 80 columns where there is none. */
static size_t help_width(void)
{
    struct winsize size = {0};
    uint64_t columns = 80;
    const char *given = getenv("COLUMNS");
    if (given && parse_count(given, &columns, NULL) == 0 && columns)
        columns = CAY_MIN(columns, (uint64_t)MAX_WIDTH);
    else if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col)
        columns = size.ws_col;
    return (size_t)CAY_MAX(CAY_MIN(columns, (uint64_t)MAX_WIDTH), (uint64_t)MIN_WIDTH);
}

/* Adds words, beginning at column `at`; lines that follow are indented by `indent`. */
static void add_wrapped(struct cay_buf *out, const char *text, size_t at, size_t indent)
{
    size_t width = help_width(), column = at;
    for (const char *p = text; *p;) {
        size_t size = strcspn(p, " ");
        if (column > at && column + 1 + size > width) {
            buf_fmt(out, "\n%*s", (int)indent, "");
            column = at = indent;
        } else if (column > at) {
            buf_str(out, " ");
            column++;
        }
        buf_add(out, p, size);
        column += size;
        p += size + (p[size] == ' ');
    }
    buf_str(out, "\n");
}

void cli_usage(struct cay_buf *out, const struct command *parent, const struct command *command)
{
    buf_str(out, "cay ");
    if (parent)
        buf_fmt(out, "%s ", parent->name);
    buf_str(out, command->name);
    if (command->n_options || command->spec)
        buf_str(out, " [OPTION...]");
    if (*command->operands)
        buf_fmt(out, " %s", command->operands);
}

static void add_option(struct cay_buf *out, const struct opt *opt)
{
    size_t start = out->size;
    if (opt->letter)
        buf_fmt(out, "  -%c, --%s", opt->letter, opt->name);
    else
        buf_fmt(out, "      --%s", opt->name);
    if (opt->metavar)
        buf_fmt(out, " %s", opt->metavar);
    size_t used = out->size - start;
    int blanks = used + 2 > HELP_COLUMN ? 2 : (int)(HELP_COLUMN - used);
    buf_fmt(out, "%*s", blanks, "");
    add_wrapped(out, opt->help, used + (size_t)blanks, HELP_COLUMN);
}

static void add_commands(struct cay_buf *out, const struct command *table)
{
    for (const struct command *c = table; c->name; c++) {
        buf_fmt(out, "  %-12s", c->name);
        add_wrapped(out, c->summary, 14, 14);
    }
}

static void add_example(struct cay_buf *out, const char *lines)
{
    buf_fmt(out, "\n%s:\n", strchr(lines, '\n') ? "Examples" : "Example");
    for (const char *p = lines; *p;) {
        size_t size = strcspn(p, "\n");
        buf_fmt(out, "  %.*s\n", (int)size, p);
        p += size + (p[size] == '\n');
    }
}

static void add_description(struct cay_buf *out, const struct command *command)
{
    autobuf struct cay_buf text = CAY_BUF(1u << 16);
    buf_fmt(&text, "%c%s.", command->summary[0] - 'a' + 'A', command->summary + 1);
    if (command->details)
        buf_fmt(&text, " %s", command->details);
    const char *words = buf_cstr(&text);
    add_wrapped(out, words ? words : command->summary, 0, 0);
}

int cli_help(struct cli *cli, const struct command *parent, const struct command *command)
{
    autobuf struct cay_buf out = CAY_BUF(1u << 20);
    struct opt_group groups[4];
    cli_groups(cli, command, groups);
    buf_str(&out, "Usage: ");
    cli_usage(&out, parent, command);
    buf_str(&out, "\n\n");
    add_description(&out, command);
    if (command->sub) {
        buf_str(&out, "\nCommands:\n");
        add_commands(&out, command->sub);
        add_example(&out, command->example);
        return cli_print(cli, &out);
    }
    buf_str(&out, "\nOptions:\n");
    for (const struct opt_group *g = groups; g->table; g++)
        for (size_t i = 0; i < g->n; i++)
            add_option(&out, &g->table[i]);
    add_example(&out, command->example);
    return cli_print(cli, &out);
}

static int overview(struct cli *cli)
{
    autobuf struct cay_buf out = CAY_BUF(1u << 20);
    buf_str(&out, "Usage: cay [--host HOST] COMMAND [OPTION...] [ARGUMENT...]\n\n"
                  "Sandboxes on this machine, with no daemon.\n\nCommands:\n");
    add_commands(&out, cli_commands);
    buf_str(&out, "\nBefore the command:\n");
    for (const struct cli_host_option *o = cli_host_options; o->opt.name; o++)
        add_option(&out, &o->opt);
    buf_str(&out,
            "\n'cay help COMMAND' explains a command. Try: cay run -- python3 -c 'print(6 * 7)'\n");
    return cli_print(cli, &out);
}

int cmd_help(struct cli *cli, const struct opt_args *args)
{
    const struct command *table = cli_commands, *parent = NULL, *found = NULL;
    if (cli->man) {
        autobuf struct cay_buf out = CAY_BUF(1u << 20);
        man_page(cli, &out);
        return cli_print(cli, &out);
    }
    if (args->n == 0)
        return overview(cli);
    for (size_t i = 0; i < args->n; i++) {
        parent = found;
        found = NULL;
        for (const struct command *c = table; c && c->name && !found; c++)
            if (strcmp(c->name, args->operands[i]) == 0)
                found = c;
        if (!found && parent)
            return cay_fail(&cli->err, CAY_E_INVALID,
                            "unknown command '%s %.64s'; 'cay help %s' explains '%s'", parent->name,
                            args->operands[i], parent->name, parent->name);
        if (!found)
            return cay_fail(&cli->err, CAY_E_INVALID,
                            "unknown command '%.64s'; 'cay help' lists them", args->operands[i]);
        table = found->sub;
    }
    return cli_help(cli, parent, found);
}

int cmd_version(struct cli *cli, const struct opt_args *args)
{
    (void)args;
    autobuf struct cay_buf out = CAY_BUF(4096);
    if (cli->json) {
        buf_str(&out, "{");
        json_str(&out, "version", cay_version());
        buf_str(&out, "}\n");
    } else {
        buf_fmt(&out, "cay %s\n", cay_version());
    }
    return cli_print(cli, &out);
}
