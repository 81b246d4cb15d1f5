/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tar format without I/O. Reading is a push parser: bytes in, events out (an entry, pieces of
 * its content, its end, the end of the archive). Understood are ustar, pax (path, linkpath, size,
 * mtime, uid, gid, SCHILY.xattr) and GNU long names; sparse files are refused, because their bytes
 * would come out wrong. Writing appends the header of one entry, with a pax header before it where
 * ustar has no room.
 *
 * Nothing is judged here: a path comes out as it is stored, with `..` and leading slashes. Memory
 * is bounded by CAY_MAX_PAX, whatever the archive says. Used by the file worker and by libcay's
 * callers.
 */
#ifndef CAY_WIRE_TAR_H
#define CAY_WIRE_TAR_H

#include "base/buf.h"

#include <stdint.h>

#define TAR_BLOCK 512

enum tar_type {
    TAR_FILE = '0',
    TAR_HARDLINK = '1',
    TAR_SYMLINK = '2',
    TAR_CHAR = '3',
    TAR_BLOCKDEV = '4',
    TAR_DIR = '5',
    TAR_FIFO = '6',
};

struct tar_entry {
    char type; /* enum tar_type, or a letter that this codec does not know */
    uint32_t mode;
    uint64_t uid, gid, size; /* size: only of files */
    int64_t mtime;           /* seconds */
    uint32_t mtime_nsec;     /* counted forward, also before 1970 */
    const char *path;
    const char *link;   /* of both kinds of links, else "" */
    const char *xattrs; /* see tar_xattr_next */
    size_t xattrs_size;
};

struct tar_xattr {
    const char *name, *value; /* borrowed */
    size_t size;
};

enum tar_event {
    TAR_MORE = 0,  /* all bytes are used up */
    TAR_ENTRY,     /* in->entry, borrowed until the next TAR_ENTRY */
    TAR_DATA,      /* in->data, in->data_size: borrowed from the input */
    TAR_ENTRY_END, /* the content of the entry is complete (comes for every entry) */
    TAR_NOTE,      /* in->note: what the archive does not have, as its maker says */
    TAR_END,       /* the archive's end mark; what follows is ignored */
};

struct tar_in {
    int state; /* private from here to `extra` */
    unsigned char block[TAR_BLOCK];
    size_t have;
    uint64_t left;
    uint32_t pad;
    char kind;
    struct cay_buf extra;
    char *path, *link; /* from a pax or GNU header, for the next entry */
    uint32_t has;      /* which of the next four a pax header gave */
    uint64_t size, uid, gid;
    int64_t mtime;
    uint32_t mtime_nsec;
    struct cay_buf xattrs, kept_xattrs;
    char *kept_path, *kept_link; /* what `entry` borrows */
    char short_path[260], short_link[104];

    struct tar_entry entry;
    char *note;
    const char *data;
    size_t data_size;
};

void tar_in_init(struct tar_in *in);
void tar_in_done(struct tar_in *in);
/* Takes bytes from *at (which moves) up to `end` until something happened. An event, or -1: not a
 * tar. */
int tar_in_next(struct tar_in *in, const char **at, const char *end, struct cay_error *err);
/* Whether the bytes may end here: behind the end mark or between two entries. */
bool tar_in_complete(const struct tar_in *in);

/* Appends the header block(s) of an entry. The caller appends `size` bytes and tar_padding(size)
 * zeros. */
int tar_put(struct cay_buf *buf, const struct tar_entry *entry);
int tar_put_end(struct cay_buf *buf);
/* Says in the archive what it does not have, for people: other readers ignore it. */
int tar_put_note(struct cay_buf *buf, const char *text);
/* The list of extended attributes of an entry. */
int tar_xattr_add(struct cay_buf *buf, const char *name, const char *value, size_t size);
bool tar_xattr_next(const char **at, const char *end, struct tar_xattr *out);
static inline const char *tar_xattr_end(const struct tar_entry *entry)
{
    return entry->xattrs ? entry->xattrs + entry->xattrs_size : NULL;
}
static inline size_t tar_padding(uint64_t size)
{
    return (size_t)(-size & (TAR_BLOCK - 1));
}

#endif
