/* SPDX-License-Identifier: Apache-2.0 */
/*
 * completion: scripts for bash, zsh and fish, printed from the tables of commands.c. Sandbox ids
 * and process numbers come from cay itself at the time of completion. zsh runs the script of bash.
 */
#include "cli/cli.h"

#include <string.h>

/* Calls `each` for every command and sub-command; `parent` is NULL for the former. */
static void walk(struct cay_buf *out,
                 void (*each)(struct cay_buf *out, const struct command *parent,
                              const struct command *command))
{
    for (const struct command *c = cli_commands; c->name; c++) {
        each(out, NULL, c);
        for (const struct command *sub = c->sub; sub && sub->name; sub++)
            each(out, c, sub);
    }
}

static void add_names(struct cay_buf *out, const struct command *table)
{
    for (const struct command *c = table; c->name; c++)
        buf_fmt(out, "%s%s", c == table ? "" : " ", c->name);
}

/* All options of a command, or only those that take a value; long names, and letters
 * of the latter. */
static void add_options(struct cay_buf *out, const struct command *command, bool valued)
{
    struct cli none = {0}; /* only tables are read; nothing is filled */
    struct opt_group groups[4];
    cli_groups(&none, command, groups);
    for (const struct opt_group *g = groups; g->table; g++)
        for (size_t i = 0; i < g->n; i++) {
            if (valued && g->table[i].type == OPT_FLAG)
                continue;
            buf_fmt(out, " --%s", g->table[i].name);
            if (valued && g->table[i].letter)
                buf_fmt(out, " -%c", g->table[i].letter);
        }
}

/* ---- bash ------------------------------------------------------------------------------------ */

static void bash_case(struct cay_buf *out, const struct command *parent, const struct command *c)
{
    buf_fmt(out, "    '%s%s%s') options='", parent ? parent->name : "", parent ? " " : "", c->name);
    add_options(out, c, false);
    buf_str(out, " ' valued='");
    add_options(out, c, true);
    buf_fmt(out, " ' kinds='%s' commands='", c->complete ? c->complete : "");
    if (c->sub)
        add_names(out, c->sub);
    buf_str(out, "' ;;\n");
}

static const char bash_head[] = "_cay_words() {\n"
                                "    local options valued kinds commands\n"
                                "    case \"$1\" in\n";

static const char bash_tail[] =
    "    esac\n"
    "    printf '%s\\n' \"$options\" \"$valued\" \"$kinds\" \"$commands\"\n"
    "}\n"
    "\n"
    "_cay_operand() {\n"
    "    case \"$1\" in\n"
    "    i) cay ps -aq 2>/dev/null ;;\n"
    "    p) cay procs \"$2\" 2>/dev/null | awk 'NR > 1 { print $1 }' ;;\n"
    "    s) echo HUP INT QUIT KILL USR1 USR2 TERM CONT STOP ;;\n"
    "    w) echo bash zsh fish ;;\n"
    "    c) echo \"$3\" ;;\n"
    "    esac\n"
    "}\n"
    "\n"
    "_cay() {\n"
    "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" name=\"\" first=\"\" word i operands=0 skip=0\n"
    "    local options=\"$_cay_before\" valued=\"$_cay_before\" kinds=\"\"\n"
    "    local commands=\"$_cay_commands\"\n"
    "    COMPREPLY=()\n"
    "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
    "        word=\"${COMP_WORDS[i]}\"\n"
    "        if ((skip)); then skip=0; continue; fi\n"
    "        if [[ -n $commands && $word != -* ]]; then\n"
    "            name=\"${name:+$name }$word\"\n"
    "            { read -r options; read -r valued; read -r kinds; read -r commands; } < "
    "<(_cay_words "
    "\"$name\")\n"
    "            continue\n"
    "        fi\n"
    "        case \"$word\" in\n"
    "        --) return ;;\n"
    "        -*) [[ \" $valued \" == *\" $word \"* ]] && skip=1 ;;\n"
    "        *) ((operands == 0)) && first=\"$word\"; operands=$((operands + 1)) ;;\n"
    "        esac\n"
    "    done\n"
    "    if ((skip)); then COMPREPLY=($(compgen -f -- \"$cur\")); return; fi\n"
    "    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")); return; fi\n"
    "    if [[ -n $commands ]]; then COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\")); return; "
    "fi\n"
    "    [[ -z $kinds ]] && return\n"
    "    ((operands >= ${#kinds})) && operands=$((${#kinds} - 1))\n"
    "    local kind=\"${kinds:$operands:1}\"\n"
    "    if [[ $kind == f ]]; then\n"
    "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
    "        [[ $name == cp ]] && COMPREPLY+=($(compgen -S : -W \"$(_cay_operand i)\" -- "
    "\"$cur\"))\n"
    "    else\n"
    "        COMPREPLY=($(compgen -W \"$(_cay_operand \"$kind\" \"$first\" \"$_cay_commands\")\" "
    "-- "
    "\"$cur\"))\n"
    "    fi\n"
    "}\n"
    "complete -F _cay cay\n";

static void bash(struct cay_buf *out)
{
    buf_str(out,
            "# Completion of cay(1) for bash; printed by 'cay completion bash'.\n_cay_commands='");
    add_names(out, cli_commands);
    buf_str(out, "'\n_cay_before='");
    for (const struct cli_host_option *o = cli_host_options; o->opt.name; o++)
        buf_fmt(out, " --%s", o->opt.name);
    buf_str(out, "'\n\n");
    buf_str(out, bash_head);
    walk(out, bash_case);
    buf_str(out, bash_tail);
}

static void zsh(struct cay_buf *out)
{
    buf_str(out, "# Completion of cay(1) for zsh; printed by 'cay completion zsh'.\n"
                 "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n");
    bash(out);
}

/* ---- fish ------------------------------------------------------------------------------------ */

/* A string for fish: in single quotes, with those inside escaped. */
static void fish_quote(struct cay_buf *out, const char *plain)
{
    buf_str(out, "'");
    for (const char *p = plain; *p; p++) {
        if (*p == '\'' || *p == '\\')
            buf_str(out, "\\");
        buf_add(out, p, 1);
    }
    buf_str(out, "'");
}

static void fish_condition(struct cay_buf *out, const struct command *parent,
                           const struct command *c)
{
    if (parent)
        buf_fmt(out,
                "complete -c cay -n '__fish_seen_subcommand_from %s; and "
                "__fish_seen_subcommand_from %s'",
                parent->name, c->name);
    else
        buf_fmt(out,
                "complete -c cay -n '__fish_seen_subcommand_from %s; and not "
                "__fish_seen_subcommand_from fs'",
                c->name);
}

static void fish_command(struct cay_buf *out, const struct command *parent, const struct command *c)
{
    if (parent) {
        buf_fmt(out,
                "complete -c cay -f -n '__fish_seen_subcommand_from %s; and not "
                "__fish_seen_subcommand_from ",
                parent->name);
        add_names(out, parent->sub);
        buf_str(out, "'");
    } else {
        buf_str(out, "complete -c cay -f -n __fish_use_subcommand");
    }
    buf_fmt(out, " -a %s -d ", c->name);
    fish_quote(out, c->summary);
    buf_str(out, "\n");
    if (c->sub)
        return;
    struct cli none = {0};
    struct opt_group groups[4];
    cli_groups(&none, c, groups);
    for (const struct opt_group *g = groups; g->table; g++)
        for (size_t i = 0; i < g->n; i++) {
            const struct opt *o = &g->table[i];
            fish_condition(out, parent, c);
            if (o->letter)
                buf_fmt(out, " -s %c", o->letter);
            buf_fmt(out, " -l %s%s -d ", o->name, o->type == OPT_FLAG ? "" : " -r");
            fish_quote(out, o->help);
            buf_str(out, "\n");
        }
    if (c->complete && c->complete[0] == 'i') {
        fish_condition(out, parent, c);
        buf_str(out, " -f -a '(cay ps -aq 2>/dev/null)'\n");
    }
}

static void fish(struct cay_buf *out)
{
    buf_str(out, "# Completion of cay(1) for fish; printed by 'cay completion fish'.\n");
    for (const struct cli_host_option *o = cli_host_options; o->opt.name; o++) {
        buf_fmt(out, "complete -c cay -n __fish_use_subcommand -l %s -r -d ", o->opt.name);
        fish_quote(out, o->opt.help);
        buf_str(out, "\n");
    }
    walk(out, fish_command);
}

int cmd_completion(struct cli *cli, const struct opt_args *args)
{
    static const struct {
        const char *name;
        void (*print)(struct cay_buf *out);
    } shells[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    autobuf struct cay_buf out = CAY_BUF(1u << 20);
    for (size_t i = 0; i < CAY_COUNT(shells); i++)
        if (strcmp(args->operands[0], shells[i].name) == 0) {
            shells[i].print(&out);
            return cli_print(cli, &out);
        }
    return cay_fail(&cli->err, CAY_E_INVALID, "unknown shell '%.64s': expected bash, zsh or fish",
                    args->operands[0]);
}
