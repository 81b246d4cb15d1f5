/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/tar_tree.h"

#include "base/util.h"

#include <string.h>
#include <sys/xattr.h>

/* ---- a hash table of files: records one after the other, and where they are ------------------ */

struct record {
    dev_t dev;
    ino_t ino;
    size_t size; /* of the path behind it, with its NUL */
};

void tar_links_done(struct tar_links *links)
{
    buf_done(&links->known);
    free(links->slots);
    links->slots = NULL;
    links->n_slots = links->n = 0;
}

/* The slot of a file, or the free one where it belongs. A slot is an offset + 1, 0: free. */
static size_t *find_slot(const struct tar_links *links, size_t *slots, size_t n, dev_t dev,
                         ino_t ino)
{
    uint64_t mixed = ((uint64_t)ino ^ (uint64_t)dev << 32) * 0x9e3779b97f4a7c15u;
    for (size_t at = (size_t)(mixed >> 32) % n;; at = (at + 1) % n) {
        struct record one;
        if (!slots[at])
            return &slots[at];
        memcpy(&one, links->known.data + slots[at] - 1, sizeof(one));
        if (one.dev == dev && one.ino == ino)
            return &slots[at];
    }
}

const char *tar_links_find(const struct tar_links *links, const struct stat *st)
{
    if (!links->n_slots)
        return NULL;
    size_t at = *find_slot(links, links->slots, links->n_slots, st->st_dev, st->st_ino);
    return at ? links->known.data + at - 1 + sizeof(struct record) : NULL;
}

static int grow(struct tar_links *links)
{
    size_t n = links->n_slots ? 2 * links->n_slots : 64;
    size_t *slots = calloc(n, sizeof(*slots));
    if (!slots)
        return -1;
    for (size_t at = 0; at < links->known.size;) {
        struct record one;
        memcpy(&one, links->known.data + at, sizeof(one));
        *find_slot(links, slots, n, one.dev, one.ino) = at + 1;
        at += sizeof(one) + one.size;
    }
    free(links->slots);
    links->slots = slots;
    links->n_slots = n;
    return 0;
}

int tar_links_add(struct tar_links *links, const struct stat *st, const char *path)
{
    struct record one = {st->st_dev, st->st_ino, strlen(path) + 1};
    char *room = buf_room(&links->known, sizeof(one) + one.size);
    if (!room) {
        links->known.failed = false;
        return -1;
    }
    if (2 * links->n >= links->n_slots && grow(links) < 0)
        return -1;
    *find_slot(links, links->slots, links->n_slots, one.dev, one.ino) = links->known.size + 1;
    links->n++;
    memcpy(room, &one, sizeof(one));
    memcpy(room + sizeof(one), path, one.size);
    links->known.size += sizeof(one) + one.size;
    return 0;
}

/* ---- attributes ------------------------------------------------------------------------------ */

int tar_xattrs_of(int fd, struct cay_buf *out)
{
    autofree char *names = NULL, *value = NULL;
    ssize_t n = flistxattr(fd, NULL, 0);
    int left_out = 0;
    out->size = 0;
    if (n <= 0)
        return 0;
    names = malloc((size_t)n);
    value = malloc(TAR_MAX_XATTRS);
    if (!names || !value)
        return -1;
    n = flistxattr(fd, names, (size_t)n);
    for (const char *name = names; n > 0 && name < names + n; name += strlen(name) + 1) {
        if (strncmp(name, "user.", 5) != 0)
            continue;
        ssize_t size = fgetxattr(fd, name, value, TAR_MAX_XATTRS);
        if (size < 0 && errno == ENODATA)
            continue; /* removed since */
        /* 64: the rest of its record, here and in the header. A '=' would end its name there. */
        if (size < 0 || strchr(name, '=') ||
            out->size + strlen(name) + (size_t)size + 64 > TAR_MAX_XATTRS)
            left_out = 1;
        else if (tar_xattr_add(out, name, value, (size_t)size) < 0)
            return -1;
    }
    return left_out;
}

int tar_xattrs_set(int fd, const struct tar_entry *entry)
{
    struct tar_xattr x;
    int eno = 0;
    const char *at = entry->xattrs;
    while (tar_xattr_next(&at, tar_xattr_end(entry), &x))
        if (strncmp(x.name, "user.", 5) == 0 && fsetxattr(fd, x.name, x.value, x.size, 0) < 0 &&
            !eno)
            eno = errno;
    errno = eno;
    return eno ? -1 : 0;
}
