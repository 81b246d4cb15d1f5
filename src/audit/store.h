/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a log, as readers see them: which there are and in what order, the lines of one, the
 * head. Readers take no lock: a line is there when its newline is there, rotation only renames, and
 * the current file is opened before the others are listed, so that nothing falls between the two.
 */
#ifndef CAY_AUDIT_STORE_H
#define CAY_AUDIT_STORE_H

#include "audit/line.h"

#define AUDIT_CURRENT "audit.jsonl"
#define AUDIT_HEAD "head"
/* audit-0000000000000001.jsonl: sorted by name is sorted by seq. */
#define AUDIT_NAME 40
void audit_store_name(uint64_t first, char out[AUDIT_NAME]);

/* Numbers of the rotated files, oldest first, appended to `out` as uint64_t. */
#define AUDIT_MAX_FILES (1u << 17)
int audit_store_list(int dir, struct cay_buf *out, struct cay_error *err);

struct audit_store {
    char path[4096];
    int dir, current;       /* current: -1 when there is none */
    struct cay_buf list;    /* of rotated files, all older than the current one */
    size_t n;               /* files, with the current one as the last */
    uint64_t current_first; /* its number: the seq of its first line; 0 while it is empty */
};

int audit_store_open(const char *path, struct audit_store *out, struct cay_error *err);
void audit_store_close(struct audit_store *store);
#define autostore __attribute__((cleanup(audit_store_close)))

/* A file of the log to read from, -1 with errno: EINVAL if something else has its name. It is not
 * waited for anything there. */
int audit_store_at(int dir, const char *name);
/* The number of the i-th file. */
uint64_t audit_store_first(const struct audit_store *store, size_t i);
/* A descriptor of its own for the i-th file; -1 with errno. ENOENT: pruned in the meantime. */
int audit_store_file(const struct audit_store *store, size_t i);
/* Why the i-th file cannot be opened, from errno; -1. */
int audit_store_unread(const struct audit_store *store, size_t i, struct cay_error *err);
/* The file with this number, -1 if there is none. */
ssize_t audit_store_find(const struct audit_store *store, uint64_t first);

/* ---- lines of one file ----------------------------------------------------------------------- */

struct audit_reader {
    int fd;          /* borrowed */
    uint64_t offset; /* of the next line */
    struct cay_buf buf;
    size_t at;
    bool skipping; /* inside a line that is too long */
};

struct audit_raw {
    const char *data;     /* borrowed until the next call */
    size_t size;          /* without the newline; 0 for one that is too long */
    uint64_t offset, end; /* in the file; end: after the newline */
};

void audit_reader_init(struct audit_reader *reader, int fd, uint64_t offset);
void audit_reader_done(struct audit_reader *reader);
#define autoreader __attribute__((cleanup(audit_reader_done)))
/* 1: a line; 0: no more whole ones, and a later call may find some; -1 with errno. */
int audit_reader_next(struct audit_reader *reader, struct audit_raw *out);
/* Bytes seen after the last newline. */
size_t audit_reader_rest(const struct audit_reader *reader);

/* ---- head ------------------------------------------------------------------------------------ */

/* What every JSON reader can count to; no log gets there, and a head that says so is damaged. */
#define AUDIT_MAX_SEQ (1ull << 53)

struct audit_head {
    uint64_t seq;
    char hash[AUDIT_HASH];
};

/* "SEQ HASH\n" and nothing else. */
bool audit_head_parse(const char *text, size_t size, struct audit_head *out);
/* 1: read; 0: there is none; -1: it cannot be read or is damaged. */
int audit_head_read(int dir, struct audit_head *out);
int audit_head_write(int dir, const struct audit_head *head, struct cay_error *err);

#endif
