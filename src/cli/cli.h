/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cay program: a table of commands (commands.c) over libcay. One `struct cli` holds what the
 * options of all commands fill, and what a command opened; it is made and freed by main.c.
 *
 *   - A command returns its exit code, or CLI_FAILED with cli->err filled: main prints one line.
 *   - Nothing is opened before a command needs it: start-up time is part of the product.
 *   - Text that a sandbox chose never reaches a terminal with control bytes in it, unless it is the
 *     output of a process or the content of a file.
 */
#ifndef CAY_CLI_CLI_H
#define CAY_CLI_CLI_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/opt.h"
#include "base/util.h"

#define CLI_FAILED (-1)
#define CLI_EXIT_TIMEOUT 124
#define CLI_EXIT_ERROR 125
#define CLI_EXIT_CANNOT_RUN 126
#define CLI_EXIT_NOT_FOUND 127
#define CLI_EXIT_SIGNAL 128

/* A listing as text or JSON: a thousand sandboxes with all their labels, a tree of
 * a million files. */
#define CLI_MAX_LISTING (256u << 20)
/* Output collected for --json, of each stream; beyond it the command fails. */
#define CLI_MAX_COLLECT (64u << 20)

#define CLI_NO_MODE UINT32_MAX

struct cli {
    const struct command *command;
    struct opt_arena arena;
    struct cay_error err;
    struct cay *cay;
    struct cay_sandbox *sandbox;

    struct cay_spec spec;
    const char *const *env_files;
    /* EXEC */
    const char *const *env;
    const char *workdir, *user, *shell;
    bool detach, interactive, tty;
    uint64_t timeout_ms;
    bool has_timeout;
    /* the rest, by name */
    bool help, json, all, quiet, follow, force, recursive, long_form, tree, fixed, ignore_case, man;
    bool verify, watch, dry_run, no_follow;
    const char *detach_keys;
    uint64_t interval_ms, older_ms;
    const char *const *labels;
    const char *include;
    const char *since, *until, *tenant, *label, *action; /* audit */
    uint64_t tail, from, grace_ms, depth, limit, offset, size;
    bool has_tail, has_grace, has_from;
    uint32_t mode; /* CLI_NO_MODE: not given */
    struct cay_lifetime lifetime;
};

struct command {
    const char *name;
    int (*run)(struct cli *cli, const struct opt_args *args);
    const struct opt *options;
    size_t n_options;
    bool spec;                 /* takes the SPEC options, too */
    bool destroys;             /* never proposed for a word that was not understood */
    const struct command *sub; /* commands below it, ended by a zeroed one; then `run` is NULL */
    const char *operands;      /* as usage shows them */
    const char *summary;       /* one line, no full stop */
    const char *details;       /* sentences for help and the manual page, or NULL */
    const char *example;       /* command lines, one on each line */
    size_t min, max;           /* operands */
    size_t command_at; /* the operand, counted from 1, where a command with own options starts */
    const char
        *complete; /* what operands are: 'i' id, 'f' file, 'r' path in the sandbox, 'x' either
                      with its ID:, 'p' process, 's' signal, 'w' shell name, 'c' command, 'C'
                      command below it, '.'
                      other; the last letter stands for all that follow */
};

#define CLI_MANY SIZE_MAX

extern const struct command cli_commands[];

/* Fills groups (room for 4) with the option tables of a command. */
void cli_groups(struct cli *cli, const struct command *command, struct opt_group *groups);

/* ---- shared by the commands (util.c) --------------------------------------------------------- */

int cli_open(struct cli *cli);
/* cli->sandbox = the sandbox `id`, or the one whose id begins so (see util.c); closes the one
 * before. */
int cli_get(struct cli *cli, const char *id);
/* The same by its whole id. */
int cli_get_exactly(struct cli *cli, const char *id);
/* The id that `id` stands for: itself, unless it is the beginning of another, which is put into
 * `room` then. NULL: an error. */
const char *cli_full_id(struct cli *cli, const char *id, char room[static CAY_MAX_ID]);
/* Writes everything to a descriptor, waiting where it is full; -1 with errno. */
int cli_write(int fd, const void *data, size_t size);
/* The error of a cli_write to standard output or standard error; -1. */
int cli_not_written(int fd, int eno, struct cay_error *err);
/* Writes a finished buffer to standard output. */
int cli_print(struct cli *cli, struct cay_buf *out);
/* One line on stderr: "cay: ..." or, with --json, the error as JSON. */
void cli_report(const struct cli *cli, const struct cay_error *err);
/* "cay: " + text on stderr, for what is worth a line but is no error. */
void cli_note(const char *fmt, ...) CAY_PRINTF(1, 2);
/* Why a command did not end by itself; nothing if it did. */
void cli_note_end(const struct cay_exit *e);
/* To be put behind "... bytes were lost"; "" if why is not known. */
const char *cli_why_lost(enum cay_code why);
struct pump;
/* The keys of --detach-keys, or the usual ones. */
int cli_detach_keys(struct cli *cli, struct pump *pump);
/* Says how to come back to a process that was left by those keys; 0. */
int cli_left(struct cli *cli, const struct cay_proc *proc);
/* Colour codes are wanted on this descriptor: a terminal, and no NO_COLOR. */
bool cli_colour(int fd);
/* Adds text from a sandbox, without control bytes if `plain`. */
void cli_add(struct cay_buf *out, const char *text, bool plain);

/* A descriptor as a cay_sink or cay_source; `eno` says why it ended the call. */
struct cli_stream {
    int fd;
    int eno;
};
int cli_sink(const void *bytes, size_t size, void *data);
ssize_t cli_source(void *buffer, size_t size, void *data);

/* "12.5M", "3m" for tables. */
#define CLI_SHORT 24
const char *cli_size(uint64_t bytes, char buffer[static CLI_SHORT]);
const char *cli_age(uint64_t ms, char buffer[static CLI_SHORT]);

/* ---- what people know from other tools (hints.c) --------------------------------------------- */

/* What to say of a command that other tools have, or NULL. */
const char *cli_hint_verb(const char *word);
/* Says more of an unknown option in err, if it is one that other tools have. */
void cli_hint_option(const struct command *command, struct cay_error *err);
/* The same of a command that was not found and looks like an image. */
void cli_hint_image(const char *word, struct cay_error *err);

/* ---- other programs (host.c) ----------------------------------------------------------------- */

/* 1 in the program that does everything by way of a cayd. */
#ifndef CAY_REMOTE
#define CAY_REMOTE 0
#endif

/* The options before the command, each with the variable that says the same. A nameless one ends
 * them. A token itself is no option: every user of a host can read the arguments of others. */
struct cli_host_option {
    struct opt opt;
    const char *variable;
};
extern const struct cli_host_option cli_host_options[];

/* Takes them off argv; hands all over where another host is named. 0 or -1. */
int cli_host(struct cli *cli, char **argv);
/* -1 if the environment says that a cayd is meant, but not which. */
int cli_check_here(struct cli *cli);
/* Becomes another program of ours. Returns only when it cannot; `what` needs it. */
int cli_exec(struct cli *cli, const char *program, const char *what, char *const *argv);

/* ---- the commands ---------------------------------------------------------------------------- */

#define CLI_COMMAND(name) int cmd_##name(struct cli *cli, const struct opt_args *args)
/* run.c */
CLI_COMMAND(run);
CLI_COMMAND(create);
CLI_COMMAND(exec);
CLI_COMMAND(shell);
/* proc.c */
CLI_COMMAND(procs);
CLI_COMMAND(attach);
CLI_COMMAND(wait);
CLI_COMMAND(signal);
CLI_COMMAND(logs);
/* list.c */
CLI_COMMAND(ps);
CLI_COMMAND(inspect);
CLI_COMMAND(doctor);
/* stats.c, top.c, prune.c, events.c */
CLI_COMMAND(stats);
CLI_COMMAND(top);
CLI_COMMAND(prune);
CLI_COMMAND(events);
/* life.c */
CLI_COMMAND(pause);
CLI_COMMAND(resume);
CLI_COMMAND(stop);
CLI_COMMAND(kill);
CLI_COMMAND(rm);
CLI_COMMAND(update);
/* fs.c */
CLI_COMMAND(fs_ls);
CLI_COMMAND(fs_cat);
CLI_COMMAND(fs_put);
CLI_COMMAND(fs_rm);
CLI_COMMAND(fs_mkdir);
CLI_COMMAND(fs_mv);
CLI_COMMAND(fs_stat);
CLI_COMMAND(fs_find);
CLI_COMMAND(fs_grep);
CLI_COMMAND(fs_watch);
/* cp.c */
CLI_COMMAND(cp);
/* audit.c */
CLI_COMMAND(audit);
/* help.c, completion.c */
CLI_COMMAND(help);
CLI_COMMAND(version);
CLI_COMMAND(completion);

/* `cay COMMAND --help`. `parent` is the command above a sub-command, or NULL. */
int cli_help(struct cli *cli, const struct command *parent, const struct command *command);
void cli_usage(struct cay_buf *out, const struct command *parent, const struct command *command);

#endif
