/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the programs are that nobody calls by name: cay-keeper, cay-remote, cay-audit.
 */
#ifndef CAY_BASE_LIBEXEC_H
#define CAY_BASE_LIBEXEC_H

#include <stddef.h>

/*
 * The path of `program`: in $CAY_LIBEXEC_DIR, else in the directory that was compiled in. If that
 * one is relative (the tarball's build), it is beside the directory of the running executable, so
 * that the tree works wherever it is unpacked.
 */
void libexec_path(char *path, size_t size, const char *program);

#endif
