/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last resort for a keeper that does not do what it is told: SIGKILL, and its sandbox dies with
 * it. The keeper is who its status record says it is, or who listens on its socket; both may be
 * gone or wrong, so nobody is killed who is not a keeper of that name while the lock is held.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "jail/sys.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

/* Dying takes milliseconds; one that still holds its lock after this waits for the kernel. */
#define DEATH_MS 10000
#define PAUSE_NS 10000000

/* `cay-keeper NAME`, as launch.c starts it; a prepared one was started under its instance's name,
 * which is not known (NULL) if its record cannot be read. */
static bool is_keeper(pid_t pid, const char *id, const char *instance)
{
    static const char program[] = "cay-keeper";
    char path[40], line[sizeof(program) + CAY_MAX_ID + 2];
    snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
    ssize_t n = cay_read_file_at(AT_FDCWD, path, line, sizeof(line));
    if (n <= (ssize_t)sizeof(program) || memcmp(line, program, sizeof(program)) != 0)
        return false;
    const char *name = line + sizeof(program); /* ends with the NUL that reading added, at last */
    return strcmp(name, id) == 0 ||
           (instance ? strcmp(name, instance) == 0 : parse_id_reserved(name));
}

static int pidfd_by_record(struct cay *cay, const char *id, pid_t *pid)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    autofd int dir = home_open(cay->run, id);
    if (dir < 0 || record_read_at(dir, "status", &buf, NULL) < 0 ||
        status_decode(buf.data, buf.size, &status, NULL) < 0 || !status.keeper_pid)
        return -1;
    /* The pidfd pins who has the number now; then it is looked at. */
    autofd int pidfd = sys_pidfd_open((pid_t)status.keeper_pid);
    if (pidfd < 0 ||
        !is_keeper((pid_t)status.keeper_pid, id, status.instance ? status.instance : id))
        return -1;
    *pid = (pid_t)status.keeper_pid;
    return steal_fd(&pidfd);
}

/* Who listens there is the keeper, whatever a record says, if it is one at all. */
static int pidfd_by_socket(struct cay *cay, const char *id, pid_t *pid)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    autofd int sock = -1;
    if (sandbox_dial(cay, id, &sock, NULL) < 0 ||
        getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return -1;
    autofd int pidfd = sys_pidfd_open(peer.pid);
    if (pidfd < 0 || !is_keeper(peer.pid, id, NULL))
        return -1;
    *pid = peer.pid;
    return steal_fd(&pidfd);
}

/* 1 or 0; -1 if that cannot be known, which is never taken for an end. */
static int is_kept(struct cay *cay, const char *id, struct cay_error *err)
{
    enum life life = sandbox_life(cay, id, err);
    return life == LIFE_UNKNOWN ? -1 : life == LIFE_KEPT;
}

int sandbox_kill_keeper(struct cay *cay, const char *id, struct cay_error *err)
{
    pid_t pid = 0;
    autofd int pidfd = pidfd_by_record(cay, id, &pid);
    if (pidfd < 0)
        pidfd = pidfd_by_socket(cay, id, &pid);
    int kept = is_kept(cay, id, err);
    if (pidfd < 0 && kept > 0)
        return cay_fail(err, CAY_E_UNAVAILABLE,
                        "sandbox '%s' does not end, and its keeper cannot be found: it is being "
                        "made, or 'cay-keeper %s' is to be killed by hand; then try again",
                        id, id);
    if (kept > 0)
        sys_pidfd_kill(pidfd, SIGKILL);
    uint64_t end = cay_after_ms(DEATH_MS);
    for (; kept > 0; kept = is_kept(cay, id, err)) {
        if (cay_now_us() > end)
            return cay_fail(err, CAY_E_UNAVAILABLE,
                            "sandbox '%s' does not end: its keeper (pid %d) was killed and is not "
                            "dead yet; 'cay rm -f %s' again removes what is left when it is",
                            id, (int)pid, id);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return kept;
}

void sandbox_kill_maker(struct cay *cay, const char *id)
{
    pid_t pid;
    autofd int pidfd = pidfd_by_record(cay, id, &pid);
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (pidfd >= 0 && sys_pidfd_kill(pidfd, SIGKILL) == 0)
        (void)poll(&p, 1, DEATH_MS);
}
