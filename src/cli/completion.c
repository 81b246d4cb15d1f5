/* SPDX-License-Identifier: Apache-2.0 */
/*
 * completion: scripts for bash, zsh and fish, printed from the tables of commands.c. Sandbox ids
 * and process numbers come from cay itself at the time of completion. zsh runs the script of bash.
 */
#include "cli/cli.h"

#include "audit/audit.h"

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

static const char bash_words_end[] =
    "    esac\n"
    "    printf '%s\\n' \"$options\" \"$valued\" \"$kinds\" \"$commands\"\n"
    "}\n";

/*
 * Kinds of operands: see struct command. Strings of the shell have two limits here: zsh runs this,
 * too, and words are taken as they were typed, since ':' cuts them in bash.
 */
static const char bash_tail[] =
    "\n"
    "_cay_run() { cay \"${_cay_host[@]}\" \"$@\" 2>/dev/null; }\n"
    "\n"
    "# The part of a reply that is in front of the last ':' or '=' is there already where those "
    "break words.\n"
    "_cay_reply() {\n"
    "    local before=\"\" reply\n"
    "    [[ ${COMP_WORDBREAKS-} == *:* && $cur == *:* ]] && before=\"${cur%\"${cur##*:}\"}\"\n"
    "    while IFS= read -r reply; do\n"
    "        [[ -n $reply && $reply == \"$cur\"* ]] && COMPREPLY+=(\"${reply#\"$before\"}\")\n"
    "    done\n"
    "}\n"
    "\n"
    "_cay_option() { type compopt >/dev/null 2>&1 && compopt \"${2:--}o\" \"$1\"; }\n"
    "\n"
    "_cay_files() {\n"
    "    local reply\n"
    "    _cay_option filenames\n"
    "    while IFS= read -r reply; do COMPREPLY+=(\"$reply\"); done < <(compgen -f -- \"$1\")\n"
    "}\n"
    "\n"
    "# Paths in the sandbox $1 that begin like $2, each behind $3; directories end with a slash.\n"
    "_cay_paths() {\n"
    "    local dir=\"\" kind name\n"
    "    [[ $2 == */* ]] && dir=\"${2%/*}/\"\n"
    "    _cay_run fs ls -l \"$1\" \"${dir:-.}\" |\n"
    "        sed -E 's/^(.)[^ ]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ [0-9-]+ [0-9:]+ /\\1 /; s/^l (.*) "
    "-> .*/l \\1/' |\n"
    "        while IFS=' ' read -r kind name; do\n"
    "            [[ $kind == d ]] && name=\"$name/\"\n"
    "            printf '%s\\n' \"$3$dir$name\"\n"
    "        done\n"
    "}\n"
    "\n"
    "_cay_values() {\n"
    "    case \"$1\" in\n"
    "    --env-file | --token-file) _cay_files \"$cur\" ;;\n"
    "    -v | --volume) [[ $cur == *:* ]] || _cay_files \"$cur\" ;;\n"
    "    --image)\n"
    "        if [[ $cur == dir:* ]]; then\n"
    "            _cay_option nospace\n"
    "            _cay_reply < <(compgen -d -P dir: -S / -- \"${cur#dir:}\")\n"
    "        else\n"
    "            _cay_reply < <(printf '%s\\n' host dir:)\n"
    "        fi ;;\n"
    "    *) _cay_reply < <(_cay_list \"$1\" | tr \" \" \"\\n\") ;;\n"
    "    esac\n"
    "}\n"
    "\n"
    "_cay_operand() {\n"
    "    local files\n"
    "    case \"$1\" in\n"
    "    i) _cay_reply < <(_cay_run ps -aq) ;;\n"
    "    p) _cay_reply < <(_cay_run procs \"$first\" | awk 'NR > 1 { print $1 }') ;;\n"
    "    s) _cay_reply < <(printf '%s\\n' HUP INT QUIT KILL USR1 USR2 TERM CONT STOP) ;;\n"
    "    w) _cay_reply < <(printf '%s\\n' bash zsh fish) ;;\n"
    "    c) _cay_reply < <(printf '%s\\n' $_cay_commands) ;;\n"
    "    C) _cay_reply < <(_cay_words \"$first\" | tail -n 1 | tr ' ' '\\n') ;;\n"
    "    f) _cay_files \"$cur\" ;;\n"
    "    r) _cay_option nospace\n"
    "        _cay_reply < <(_cay_paths \"$first\" \"$cur\" \"\") ;;\n"
    "    x)\n"
    "        if [[ $cur == [a-z0-9]*:* ]]; then\n"
    "            _cay_reply < <(_cay_paths \"${cur%%:*}\" \"${cur#*:}\" \"${cur%%:*}:\")\n"
    "            _cay_option nospace\n"
    "        else\n"
    "            _cay_files \"$cur\"\n"
    "            if [[ $cur != */* ]]; then\n"
    "                files=${#COMPREPLY[@]}\n"
    "                _cay_reply < <(_cay_run ps -q | sed 's/$/:/')\n"
    "                if ((${#COMPREPLY[@]} > files)); then\n"
    "                    _cay_option nospace\n"
    "                    _cay_option filenames + # it would quote the ':'\n"
    "                fi\n"
    "            fi\n"
    "        fi ;;\n"
    "    esac\n"
    "}\n"
    "\n"
    "_cay() {\n"
    "    local cur=\"\" name=\"\" first=\"\" before=\"\" word i n operands=0 skip=\"\" noglob=0\n"
    "    local options=\"$_cay_before\" valued=\"$_cay_before\" kinds=\"\" "
    "commands=\"$_cay_commands\"\n"
    "    local -a typed _cay_host\n"
    "    COMPREPLY=()\n"
    "    # As they were typed: the shell cuts at ':' and '=', which stand in paths and values "
    "here.\n"
    "    [[ $- == *f* ]] && noglob=1\n"
    "    set -f\n"
    "    typed=(${COMP_LINE:0:COMP_POINT})\n"
    "    ((noglob)) || set +f\n"
    "    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && typed+=(\"\")\n"
    "    n=$((${#typed[@]} - 1))\n"
    "    ((n < 1)) && return\n"
    "    cur=\"${typed[n]}\"\n"
    "    for ((i = 1; i < n; i++)); do\n"
    "        word=\"${typed[i]}\"\n"
    "        if [[ -n $skip ]]; then\n"
    "            [[ -z $name ]] && _cay_host+=(\"$skip\" \"$word\")\n"
    "            skip=\"\"\n"
    "            continue\n"
    "        fi\n"
    "        if [[ -n $commands && $word != -* ]]; then\n"
    "            name=\"${name:+$name }$word\"\n"
    "            { read -r options; read -r valued; read -r kinds; read -r commands; } < "
    "<(_cay_words \"$name\")\n"
    "            continue\n"
    "        fi\n"
    "        case \"$word\" in\n"
    "        --) return ;;\n"
    "        --*=*) [[ -z $name ]] && _cay_host+=(\"$word\") ;;\n"
    "        -*) [[ \" $valued \" == *\" $word \"* ]] && skip=\"$word\" ;;\n"
    "        *) ((operands == 0)) && first=\"$word\"; operands=$((operands + 1)) ;;\n"
    "        esac\n"
    "    done\n"
    "    if [[ -n $skip ]]; then _cay_values \"$skip\"; return; fi\n"
    "    if [[ $cur == --*=* ]]; then\n"
    "        word=\"${cur%%=*}\"\n"
    "        cur=\"${cur#*=}\"\n"
    "        _cay_values \"$word\"\n"
    "        [[ ${COMP_WORDBREAKS-} == *=* ]] || COMPREPLY=(\"${COMPREPLY[@]/#/$word=}\")\n"
    "        return\n"
    "    fi\n"
    "    if [[ $cur == -* ]]; then _cay_reply < <(printf '%s\\n' $options); return; fi\n"
    "    if [[ -n $commands ]]; then _cay_reply < <(printf '%s\\n' $commands); return; fi\n"
    "    [[ -z $kinds ]] && return\n"
    "    ((operands >= ${#kinds})) && operands=$((${#kinds} - 1))\n"
    "    _cay_operand \"${kinds:$operands:1}\"\n"
    "}\n"
    "\n"
    "# What cayd knows it says itself.\n"
    "_cayd() {\n"
    "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\" "
    "help=\"--help\"\n"
    "    COMPREPLY=()\n"
    "    [[ ${COMP_WORDS[1]} == token ]] && ((COMP_CWORD > 1)) && help=\"token --help\"\n"
    "    case \"$previous\" in\n"
    "    --config | -c | --file | -f | --state-dir | --run-dir) _cay_files \"$cur\"; return ;;\n"
    "    esac\n"
    "    if [[ $cur == -* ]]; then\n"
    "        _cay_reply < <(cayd $help 2>/dev/null | grep -oE -e '--[a-z][a-z-]*' | sort -u)\n"
    "    elif ((COMP_CWORD == 1)); then\n"
    "        _cay_reply < <(printf '%s\\n' token)\n"
    "    elif [[ ${COMP_WORDS[1]} == token ]] && ((COMP_CWORD == 2)); then\n"
    "        _cay_reply < <(printf '%s\\n' add ls rm)\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _cay cay\n"
    "complete -F _cayd cayd\n";

/* Values of options that can be listed. */
static const struct {
    const char *option, *values;
} values[] = {
    {"--profile", "strict default nested"},  {"--net", "deny-all"},
    {"--user -u", "root user nobody"},       {"--host", "unix: http:// https://"},
    {"--detach-keys", "ctrl-p,ctrl-q none"},
#define CAY_X(sym, name, event) " " name
    {"--action", AUDIT_ACTION_TABLE(CAY_X)},
#undef CAY_X
};

static void bash_values(struct cay_buf *out)
{
    buf_str(out, "\n_cay_list() {\n    case \" $1 \" in\n");
    for (size_t i = 0; i < CAY_COUNT(values); i++)
        for (const char *p = values[i].option; *p;) {
            size_t n = strcspn(p, " ");
            buf_fmt(out, "    \" %.*s \") echo '%s' ;;\n", (int)n, p, values[i].values);
            p += n + (p[n] != 0);
        }
    buf_str(out, "    esac\n}\n");
}

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
    buf_str(out, bash_words_end);
    bash_values(out);
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

/* Values that can be listed, instead of files. */
static void fish_values(struct cay_buf *out, const char *option)
{
    size_t n = strlen(option);
    for (size_t i = 0; i < CAY_COUNT(values); i++) {
        const char *name = values[i].option + 2; /* behind the dashes */
        if (strcspn(name, " ") == n && strncmp(name, option, n) == 0) {
            buf_str(out, " -f -a ");
            fish_quote(out, values[i].values);
        }
    }
}

/* Paths in a sandbox: "ID:/path", or with the ID as an operand before it. */
static const char fish_paths[] = "function __cay_paths\n"
                                 "    set -l id $argv[1]\n"
                                 "    set -l dir (string replace -r '[^/]*$' '' -- $argv[2])\n"
                                 "    set -l from $dir\n"
                                 "    test -z \"$from\"; and set from .\n"
                                 "    for name in (cay fs ls $id $from 2>/dev/null)\n"
                                 "        echo $argv[3]$dir$name\n"
                                 "    end\n"
                                 "end\n"
                                 "function __cay_copy\n"
                                 "    set -l word (commandline -ct)\n"
                                 "    if string match -q '*:*' -- $word\n"
                                 "        set -l parts (string split -m 1 : -- $word)\n"
                                 "        __cay_paths $parts[1] $parts[2] $parts[1]:\n"
                                 "    else\n"
                                 "        cay ps -q 2>/dev/null | string replace -r '$' ':'\n"
                                 "    end\n"
                                 "end\n"
                                 "function __cay_inside\n"
                                 "    set -l words (commandline -opc)\n"
                                 "    if test (count $words) -ge 4\n"
                                 "        __cay_paths $words[4] (commandline -ct) ''\n"
                                 "    end\n"
                                 "end\n";

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
            buf_fmt(out, " -l %s%s", o->name, o->type == OPT_FLAG ? "" : " -r");
            fish_values(out, o->name);
            buf_str(out, " -d ");
            fish_quote(out, o->help);
            buf_str(out, "\n");
        }
    if (c->complete && c->complete[0] == 'i') {
        fish_condition(out, parent, c);
        buf_str(out, " -f -a '(cay ps -aq 2>/dev/null)'\n");
    }
    if (c->complete && strchr(c->complete, 'r')) {
        fish_condition(out, parent, c);
        buf_str(out, " -a '(__cay_inside)'\n");
    }
    if (c->complete && c->complete[0] == 'x') {
        fish_condition(out, parent, c);
        buf_str(out, " -a '(__cay_copy)'\n");
    }
}

static void fish(struct cay_buf *out)
{
    buf_str(out, "# Completion of cay(1) for fish; printed by 'cay completion fish'.\n");
    buf_str(out, fish_paths);
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
