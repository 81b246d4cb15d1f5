/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting a keeper: a process of its own, with nothing from us but the connection that it is told
 * by what to do.
 */
#include "base/err.h"
#include "base/libexec.h"
#include "base/sock.h"
#include "base/util.h"
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

/* The descriptor that a keeper is born with: see src/keeper/main.c. */
#define KEEPER_CREATOR 3

extern char **environ;

/* The address sanitizer's own vfork cannot be nested. */
#ifdef __SANITIZE_ADDRESS__
#define vfork fork
#endif

struct launch {
    char program[CAY_MAX_PATH];
    char *argv[3];
    int creator; /* above every target number */
};

/* Runs in memory shared with the parent: nothing but system calls. */
__attribute__((noinline, noreturn)) static void exec_keeper(const struct launch *launch)
{
    setsid();
    if (dup2(launch->creator, KEEPER_CREATOR) >= 0)
        execve(launch->program, launch->argv, environ);
    _exit(127);
}

/*
 * The keeper must be nobody's child: a program that uses the library should neither find a zombie
 * nor have to wait for it. Two vforks, so that no memory is copied; the one in the middle is gone
 * at once.
 */
static int fork_twice(const struct launch *launch)
{
    sigset_t all, old;
    int status = 0;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    pid_t middle = vfork();
    if (middle == 0) {
        pid_t keeper = vfork();
        if (keeper == 0)
            exec_keeper(launch);
        _exit(keeper < 0);
    }
    int eno = errno;
    while (middle > 0 && waitpid(middle, &status, 0) < 0)
        if (errno != EINTR)
            break;
    sigprocmask(SIG_SETMASK, &old, NULL);
    errno = eno;
    return middle < 0 || status != 0 ? -1 : 0;
}

int launch_keeper(const char *id, int *creator, struct cay_error *err)
{
    struct launch launch = {.argv = {"cay-keeper", (char *)id, NULL}};
    int pair[2];
    libexec_path(launch.program, sizeof(launch.program), "cay-keeper");
    if (access(launch.program, X_OK) < 0)
        return cay_fail_errno(
            err, errno, "cannot find the keeper %s (is cay installed? $CAY_LIBEXEC_DIR says where)",
            launch.program);
    if (sock_pair(pair) < 0)
        return cay_fail_errno(err, errno, "cannot make a socket pair");
    autofd int ours = pair[0], theirs = pair[1];
    autofd int high = fcntl(theirs, F_DUPFD_CLOEXEC, 16);
    launch.creator = high;
    if (high < 0 && errno == EINVAL)
        errno = EMFILE; /* the limit on open files is below that number */
    if (high < 0 || fork_twice(&launch) < 0)
        return cay_fail_errno(err, errno, "cannot start the keeper");
    *creator = steal_fd(&ours);
    return 0;
}
