/* SPDX-License-Identifier: Apache-2.0 */
#include "base/libexec.h"

#include "base/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The directory of the running executable; without /proc, one that is surely not the caller's. */
static void own_directory(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n < 0 ? 0 : n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    else
        snprintf(path, size, "/usr/local/bin");
}

void libexec_path(char *path, size_t size, const char *program)
{
    static const char compiled[] = CAY_LIBEXEC_DIR;
    char own[CAY_MAX_PATH];
    const char *dir = getenv("CAY_LIBEXEC_DIR");
    if (!dir || !*dir)
        dir = compiled;
    own[0] = '\0';
    if (dir == compiled && compiled[0] != '/')
        own_directory(own, sizeof(own));
    snprintf(path, size, "%s%s%s/%s", own, own[0] ? "/" : "", dir, program);
}
