/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The warden: on hosts without cgroups it stands between init and a command as a child subreaper,
 * so that whatever the command leaves behind stays below it and can be found (tree.c). It tells
 * init the command's pid and its end, and goes when it has no children left. All signals stay
 * blocked, as init has them: only SIGKILL ends it early, and then init takes over (proc.c).
 */
#include "init/init.h"

#include "base/err.h"
#include "base/util.h"
#include "init/sys.h"

#include <sys/prctl.h>
#include <sys/wait.h>

void rusage_to_report(const struct rusage *usage, struct warden_report *out)
{
    out->cpu_us = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
                  (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
    out->peak_memory = (uint64_t)usage->ru_maxrss * 1024;
}

static void tell(int fd, const struct warden_report *report)
{
    if (write(fd, report, sizeof(*report)) < 0)
        _exit(1);
}

_Noreturn void warden_run(const struct child *child, int report)
{
    struct warden_report news = {0};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t command = sys_fork_into(-1);
    if (command < 0 && errno == ENOSYS)
        command = fork();
    if (command == 0)
        child_run(child);
    if (command < 0) {
        struct cay_error err;
        cay_fail_errno(&err, errno, "cannot start a process");
        child_fail(child->status, &err);
    }
    /* Also closes the command's pipes, which must end when the command ends. */
    report = child_cut_off(report);
    news.pid = command;
    tell(report, &news);
    for (;;) {
        struct rusage usage;
        int status;
        pid_t pid = wait4(-1, &status, 0, &usage);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            _exit(0);
        if (pid != command || news.ended)
            continue;
        news.ended = 1;
        news.status = status;
        rusage_to_report(&usage, &news);
        tell(report, &news);
    }
}
