/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay fs: files in a sandbox. Listings are printed as they come, in constant memory. Names and
 * lines that a sandbox chose go to a terminal without control bytes, and to anything else as they
 * are.
 */
#include "cli/cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Printed at once; keeps a long listing at few writes and little memory. */
#define FLUSH_AT (64u << 10)

struct printer {
    struct cli *cli;
    const char *base; /* path that names are relative to, or NULL: print them as they are */
    struct cay_buf out;
    size_t n;
    int eno;
    const char *asked; /* stat: the name as it was asked for, which is the only one there is */
    bool plain, full;  /* full: long form */
};

static int open_fs(struct cli *cli, const char *id, struct cay_fs **out)
{
    return cli_get(cli, id) < 0 ? -1 : cay_fs_open(cli->sandbox, cli->user, out, &cli->err);
}

static void fs_cleanup(struct cay_fs **fs)
{
    cay_fs_close(*fs);
}
#define autofs __attribute__((cleanup(fs_cleanup)))

static struct printer printer_of(struct cli *cli, const char *base)
{
    return (struct printer){
        .cli = cli, .base = base, .out = CAY_BUF(4 * FLUSH_AT), .plain = isatty(STDOUT_FILENO)};
}

static int flush(struct printer *p)
{
    if (cli_write(STDOUT_FILENO, p->out.data, p->out.size) < 0) {
        p->eno = errno;
        return -1;
    }
    p->out.size = 0;
    return 0;
}

static int printed(struct printer *p)
{
    return p->out.size >= FLUSH_AT ? flush(p) : 0;
}

/* Between two JSON entries; `p->n` counts them, since the buffer is emptied now and then. */
static void begin_entry(struct printer *p)
{
    buf_str(&p->out, p->n++ ? ",{" : "{");
}

/* Ends a listing: result of the call that fed it. */
static int finish(struct printer *p, int result)
{
    struct cli *cli = p->cli;
    /* What came before an error is shown as well. */
    if ((result == 0 || p->n) && p->eno == 0)
        flush(p);
    buf_done(&p->out);
    if (p->eno)
        return cli_not_written(STDOUT_FILENO, p->eno, &cli->err);
    return result < 0 ? CLI_FAILED : 0;
}

/* BASE/NAME as one path; an empty name is the base itself. */
static void add_path(struct cay_buf *out, const char *base, const char *name)
{
    bool joined = base && name[0] != '/';
    if (joined)
        buf_str(out, base);
    if (joined && *name && *base && base[strlen(base) - 1] != '/')
        buf_str(out, "/");
    buf_str(out, name);
}

static void print_path(struct printer *p, const char *name)
{
    autobuf struct cay_buf path = CAY_BUF(16384);
    add_path(&path, p->base, name);
    const char *text = buf_cstr(&path);
    cli_add(&p->out, text ? text : name, p->plain);
}

static void json_path(struct printer *p, const char *key, const char *name)
{
    autobuf struct cay_buf path = CAY_BUF(16384);
    add_path(&path, p->base, name);
    const char *text = buf_cstr(&path);
    json_str(&p->out, key, text ? text : name);
}

static void stat_json(struct printer *p, const char *name, const struct cay_stat *st)
{
    begin_entry(p);
    json_path(p, "name", name);
    json_stat(&p->out, st);
    json_str(&p->out, "target", st->target);
    buf_str(&p->out, "}");
}

/* "-rwxr-xr-x  2 0 0 1234 2026-01-31 12:34 " */
static void stat_prefix(struct printer *p, const struct cay_stat *st)
{
    char mode[11] = "?rwxrwxrwx", when[32] = "";
    time_t seconds = (time_t)(st->mtime_ns / 1000000000 - (st->mtime_ns % 1000000000 < 0));
    struct tm tm;
    mode[0] = st->type == 'f' ? '-' : st->type;
    for (int bit = 0; bit < 9; bit++)
        if (!(st->mode & (0400u >> bit)))
            mode[bit + 1] = '-';
    if (gmtime_r(&seconds, &tm))
        strftime(when, sizeof(when), "%Y-%m-%d %H:%M", &tm);
    buf_fmt(&p->out, "%s %3llu %5u %5u %10llu %s ", mode, (unsigned long long)st->links, st->uid,
            st->gid, (unsigned long long)st->size, when);
}

static int print_stat(const struct cay_stat *st, void *data)
{
    struct printer *p = data;
    const char *name = p->asked ? p->asked : st->name ? st->name : "";
    if (p->cli->json) {
        stat_json(p, name, st);
        return printed(p);
    }
    if (p->full)
        stat_prefix(p, st);
    print_path(p, name);
    if (p->full && st->target) {
        buf_str(&p->out, " -> ");
        cli_add(&p->out, st->target, p->plain);
    }
    buf_str(&p->out, "\n");
    p->n++;
    return printed(p);
}

static void begin_list(struct printer *p)
{
    if (p->cli->json)
        buf_str(&p->out, "[");
}

static void end_list(struct printer *p)
{
    if (p->cli->json)
        buf_str(&p->out, "]\n");
}

int cmd_fs_ls(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    struct printer p = printer_of(cli, NULL);
    p.full = cli->long_form;
    uint64_t depth = cli->depth       ? CAY_MIN(cli->depth, (uint64_t)UINT32_MAX)
                     : cli->recursive ? UINT32_MAX
                                      : 1;
    begin_list(&p);
    int r = cay_fs_list(fs, args->n > 1 ? args->operands[1] : ".", (uint32_t)depth, print_stat, &p,
                        &cli->err);
    end_list(&p);
    return finish(&p, r);
}

int cmd_fs_stat(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    struct printer p = printer_of(cli, NULL);
    int r = 0;
    p.full = true;
    /* One was asked for: an object, not a list of one. */
    bool list = cli->json && args->n > 2;
    if (list)
        buf_str(&p.out, "[");
    for (size_t i = 1; i < args->n && r == 0; i++) {
        p.asked = args->operands[i];
        r = cay_fs_stat(fs, args->operands[i], cli->follow, print_stat, &p, &cli->err);
    }
    if (list)
        buf_str(&p.out, "]");
    if (cli->json)
        buf_str(&p.out, "\n");
    return finish(&p, r);
}

int cmd_fs_find(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    struct printer p = printer_of(cli, args->operands[1]);
    begin_list(&p);
    int r = cay_fs_find(fs, args->operands[1], args->n > 2 ? args->operands[2] : "*", cli->limit,
                        print_stat, &p, &cli->err);
    end_list(&p);
    return finish(&p, r);
}

static int print_match(const struct cay_match *match, void *data)
{
    struct printer *p = data;
    if (p->cli->json) {
        begin_entry(p);
        json_path(p, "path", match->path);
        json_num(&p->out, "line", match->line);
        json_str(&p->out, "text", match->text);
        buf_str(&p->out, "}");
        return printed(p);
    }
    print_path(p, match->path);
    buf_fmt(&p->out, ":%llu:", (unsigned long long)match->line);
    cli_add(&p->out, match->text, p->plain);
    buf_str(&p->out, "\n");
    p->n++;
    return printed(p);
}

int cmd_fs_grep(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    struct printer p = printer_of(cli, args->operands[1]);
    begin_list(&p);
    int r = cay_fs_grep(fs, args->operands[1], args->operands[2], cli->fixed, cli->ignore_case,
                        cli->include, cli->limit, print_match, &p, &cli->err);
    end_list(&p);
    bool found = p.n > 0;
    return finish(&p, r) < 0 ? CLI_FAILED : !found;
}

static int print_change(const struct cay_change *change, void *data)
{
    struct printer *p = data;
    const char *kind = json_change_name(change->kind);
    const char *path = change->path ? change->path : "";
    if (p->cli->json) {
        buf_str(&p->out, "{");
        json_str(&p->out, "kind", kind);
        json_path(p, "path", path);
        buf_str(&p->out, "}\n");
    } else {
        buf_fmt(&p->out, "%s ", kind);
        print_path(p, path);
        buf_str(&p->out, "\n");
    }
    return flush(p);
}

int cmd_fs_watch(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    struct printer p = printer_of(cli, args->operands[1]);
    return finish(&p,
                  cay_fs_watch(fs, args->operands[1], cli->recursive, print_change, &p, &cli->err));
}

/* ---- contents and changes -------------------------------------------------------------------- */

int cmd_fs_cat(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    for (size_t i = 1; i < args->n; i++) {
        struct cli_stream out = {.fd = STDOUT_FILENO};
        int r =
            cay_fs_read(fs, args->operands[i], cli->offset, cli->size, cli_sink, &out, &cli->err);
        if (out.eno)
            return cli_not_written(STDOUT_FILENO, out.eno, &cli->err);
        if (r < 0)
            return CLI_FAILED;
    }
    return 0;
}

int cmd_fs_put(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    autofd int file = -1;
    const char *name = "standard input";
    uint32_t mode = 0644;
    if (args->n > 2 && strcmp(args->operands[2], "-") != 0) {
        struct stat st;
        name = args->operands[2];
        file = open(name, O_RDONLY | O_CLOEXEC);
        if (file < 0 || fstat(file, &st) < 0)
            return cay_fail_errno(&cli->err, errno, "cannot open %s", name);
        if (S_ISDIR(st.st_mode))
            return cay_fail(&cli->err, CAY_E_INVALID, "%s is a directory: use 'cay cp'", name);
        mode = st.st_mode & 0777;
    }
    mode = CAY_MODE_GIVEN | (cli->mode == CLI_NO_MODE ? mode : cli->mode);
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    struct cli_stream in = {.fd = file >= 0 ? file : STDIN_FILENO};
    int r = cay_fs_write(fs, args->operands[1], mode, cli_source, &in, &cli->err);
    return in.eno ? cay_fail_errno(&cli->err, in.eno, "cannot read %s", name) : r;
}

int cmd_fs_rm(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    for (size_t i = 1; i < args->n; i++)
        if (cay_fs_remove(fs, args->operands[i], cli->recursive, &cli->err) < 0 &&
            !(cli->force && cli->err.code == CAY_E_NOT_FOUND))
            return CLI_FAILED;
    return 0;
}

int cmd_fs_mkdir(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    uint32_t mode = CAY_MODE_GIVEN | (cli->mode == CLI_NO_MODE ? 0755 : cli->mode);
    for (size_t i = 1; i < args->n; i++)
        if (cay_fs_mkdir(fs, args->operands[i], mode, &cli->err) < 0)
            return CLI_FAILED;
    return 0;
}

int cmd_fs_mv(struct cli *cli, const struct opt_args *args)
{
    autofs struct cay_fs *fs = NULL;
    if (open_fs(cli, args->operands[0], &fs) < 0)
        return CLI_FAILED;
    return cay_fs_move(fs, args->operands[1], args->operands[2], &cli->err);
}
