/* SPDX-License-Identifier: Apache-2.0 */
/* What those need who make an archive of a tree: which file came already, and attributes. */
#ifndef CAY_WIRE_TAR_TREE_H
#define CAY_WIRE_TAR_TREE_H

#include "base/limits.h"
#include "wire/tar.h"

#include <sys/stat.h>

/* Attributes of one entry: they have to fit in its header beside two paths. */
#define TAR_MAX_XATTRS (CAY_MAX_PAX - 3 * CAY_MAX_PATH)
/* The files of which a table of links knows a path, all in all. */
#define TAR_MAX_LINKS (16u << 20)

struct tar_links {
    struct cay_buf known; /* private */
    size_t *slots, n_slots, n;
};

#define TAR_LINKS ((struct tar_links){.known = CAY_BUF(TAR_MAX_LINKS)})

void tar_links_done(struct tar_links *links);
/* The path that this file was added with, borrowed; NULL: it was not. */
const char *tar_links_find(const struct tar_links *links, const struct stat *st);
/* -1: no room is left. */
int tar_links_add(struct tar_links *links, const struct stat *st, const char *path);

/* The user.* attributes of a file, in place of what is in `out`. 1: some do not fit; -1: no memory.
 */
int tar_xattrs_of(int fd, struct cay_buf *out);
/* Sets those of an entry that begin with user.; -1 with errno of the first that failed. */
int tar_xattrs_set(int fd, const struct tar_entry *entry);

#endif
