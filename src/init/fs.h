/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file worker: a fork of init that became the caller's user and serves FS_* requests on one
 * channel. It is as untrusted as everything in the sandbox, so paths need no guarding here (the
 * kernel's root is the sandbox's root); what matters is that it never blocks on a fifo or device,
 * holds bounded memory, and notices when its caller is gone. Each operation returns 0 (the loop
 * answers OK) or -1 (ERROR).
 */
#ifndef CAY_INIT_FS_H
#define CAY_INIT_FS_H

#include "wire/chan.h"

#include <sys/stat.h>

struct worker {
    struct chan chan;
    struct cay_buf out; /* frames not yet sent */
    uint32_t tag;       /* of the request that is served */
    unsigned ticks;     /* see fs_tick */
    bool alive;         /* it sends FS_ALIVE */
};

/* worker.c: talking to the caller. Frames are sent in batches; fs_flush sends what is left. */
int fs_send(struct worker *worker, struct msg *msg, struct cay_error *err);
int fs_flush(struct worker *worker, struct cay_error *err);
int fs_send_data(struct worker *worker, const char *data, size_t size, struct cay_error *err);
/* The next piece of an upload (borrowed until the next call). 1: data; 0: its end; -1: aborted or
 * lost. */
int fs_recv_data(struct worker *worker, struct wire_bytes *out, struct cay_error *err);
/* Call it now and then in long work: fails once the caller has hung up. */
int fs_tick(struct worker *worker, struct cay_error *err);

/* fs_path.c: what several operations need of paths and files. */
#define FS_TMP_SIZE 16
void fs_tmp_name(char out[FS_TMP_SIZE]); /* ".cay-" and random letters */
bool fs_is_tmp_name(const char *name);
const char *fs_kind(mode_t mode); /* "a directory", "a fifo" ... */
/* Opens a regular file for reading without ever waiting. -1 with err. */
int fs_open_file(int dir, const char *path, const char *shown, int flags, struct stat *st,
                 struct cay_error *err);
/* Opens a directory; -1 with err. */
int fs_open_dir(const char *path, struct cay_error *err);
/* Makes a directory with its parents (0755); an existing directory is fine. */
int fs_make_dirs(const char *path, mode_t mode, struct cay_error *err);
/* Splits off the last name: *dir (owned) is "." or "/" where there is none; the name points into
 * path. */
int fs_split(const char *path, char **dir, const char **name, struct cay_error *err);
/* A link's target, owned; NULL if it cannot be read. */
char *fs_read_link(int dir, const char *name);
/* Copies the rest of a file, until the caller is gone; without a worker to the end. -1 with errno.
 */
int fs_copy_bytes(struct worker *worker, int from, int to);

typedef int fs_op(struct worker *worker, const struct msg *msg, struct cay_error *err);
fs_op fs_read, fs_stat, fs_list, fs_find; /* fs_look.c */
fs_op fs_write, fs_mkdir;                 /* fs_write.c */
fs_op fs_move, fs_remove;                 /* fs_move.c */
fs_op fs_grep;                            /* fs_grep.c */
fs_op fs_watch;                           /* fs_watch.c */
fs_op fs_tar_out;                         /* fs_tar.c */
fs_op fs_tar_in;                          /* fs_untar.c */

/* fs_write.c: a file that is a mount of its own cannot be renamed over: its content is replaced in
 * place by that of `fd`, or stays what it was. -1 with errno. */
int fs_overwrite(struct worker *worker, int fd, int dir, const char *name);
/* fs_move.c: removes whatever `name` in `dir` is. */
int fs_remove_at(struct worker *worker, int dir, const char *name, const char *shown,
                 struct cay_error *err);

#endif
