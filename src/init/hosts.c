/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sandbox knows its own host name: a line in /etc/hosts, written before the first process is
 * started. Only now is the name known (a prepared sandbox gets it late), and still nobody else is
 * inside. What the image or a mount has made of that file is left alone unless it is an ordinary
 * file of the root itself.
 */
#include "base/util.h"
#include "init/init.h"
#include "init/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A longer one is somebody's block list, and knows what it wants. */
#define MAX_HOSTS 4096

void init_name_host(struct init *init)
{
    char name[65] = "", text[MAX_HOSTS + 1], line[96];
    struct stat st;
    struct open_how how = {
        .flags = O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV,
    };
    if (init->named)
        return;
    init->named = true;
    autofd int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    autofd int fd = root < 0 ? -1 : (int)syscall(SYS_openat2, root, "etc/hosts", &how, sizeof(how));
    if (fd < 0 || gethostname(name, sizeof(name) - 1) < 0 || !*name || fstat(fd, &st) < 0 ||
        !S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_size > MAX_HOSTS)
        return;
    ssize_t n = pread(fd, text, MAX_HOSTS, 0);
    if (n < 0)
        return;
    text[n] = 0;
    int size = snprintf(line, sizeof(line), "%s127.0.1.1 %s\n",
                        n && text[n - 1] != '\n' ? "\n" : "", name);
    if (!strstr(text, line))
        (void)!write(fd, line, (size_t)size);
}
