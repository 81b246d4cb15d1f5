/* SPDX-License-Identifier: Apache-2.0 */
/* What the two directions of `cay cp` share. */
#ifndef CAY_CLI_CP_H
#define CAY_CLI_CP_H

#include "cli/cli.h"

/* A path that grows and shrinks while a tree is walked; never beyond CAY_MAX_PATH. */
struct cp_path {
    char text[4096];
    size_t size;
};

int cp_path_set(struct cp_path *path, const char *text, struct cay_error *err);
/* Appends "/name" and returns the size before, to cut back to. */
int cp_path_add(struct cp_path *path, const char *name, size_t *before, struct cay_error *err);
void cp_path_cut(struct cp_path *path, size_t size);

/* Last part of a path as the user wrote it; "" when the content is meant ("dir/.", "/", ".."). */
void cp_base_name(const char *path, char name[static 256]);

int cp_in(struct cli *cli, const char *local, const char *remote);
int cp_out(struct cli *cli, const char *remote, const char *local);

#endif
