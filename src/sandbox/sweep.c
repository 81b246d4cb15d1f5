/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done about a keeper that is dead: whoever notices first takes the lock that the keeper
 * left, removes what the kernel does not remove by itself (cgroups, the id range, the run
 * directory) and writes down that the sandbox was lost. Processes, mounts and namespaces died with
 * the keeper.
 */
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "jail/cgroup.h"
#include "sandbox/record.h"
#include "sandbox/sandbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

/* A run directory without a lock is left alone this long: its creator may just be about
 * to take it. */
#define GRACE_S 2
/* While another sweeps the instance of a sandbox: half a second. */
#define INSTANCE_TRIES 500
#define INSTANCE_PAUSE_NS 1000000

/* 1: the record says how it ended; 0: it says how it was born, or nothing; -1: it may say
 * something. */
static int read_record(int dir, struct cay_buf *buf, struct status *out)
{
    struct cay_error why;
    if (record_read_at(dir, "status", buf, &why) < 0)
        return why.code == CAY_E_NOT_FOUND || why.code == CAY_E_INVALID ? 0 : -1;
    return status_decode(buf->data, buf->size, out, NULL) == 0 && out->state >= CAY_STATE_EXITED;
}

/* What its keeper said last (`last`), if that could be read. */
enum last { LAST_NONE, LAST_DAMAGED, LAST_KNOWN };

static int write_lost(struct cay *cay, const char *id, const struct status *last, enum last what)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS), old = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status birth = {0};
    autofd int dir = home_open(cay->sandboxes, id);
    if (dir < 0)
        return home_absent(errno) ? 0 : -1;
    int written = read_record(dir, &old, &birth);
    if (written != 0) /* its keeper wrote down how it ended, but could not clean up */
        return written < 0 ? -1 : 0;
    struct status lost = what == LAST_KNOWN ? *last : birth;
    bool rebooted = home_rebooted(lost.boot_id);
    if (what == LAST_NONE || (what == LAST_KNOWN && lost.state == CAY_STATE_CREATING && !rebooted))
        /* Never finished: the create failed, there is nothing to remember. */
        return cay_remove_tree_at(cay->sandboxes, id);
    lost.state = CAY_STATE_LOST;
    lost.reason = rebooted             ? "the host restarted"
                  : what == LAST_KNOWN ? "its keeper was killed"
                                       : "its keeper was killed, and its status is damaged";
    lost.ended_ms = cay_wall_ms();
    lost.processes = 0;
    if (status_encode(&lost, &buf) < 0)
        return -1;
    return record_settle_at(dir, "status", buf.data, buf.size, NULL);
}

static void release_if_owner(struct cay *cay, const char *id, const char *number)
{
    char name[300], owner[CAY_MAX_ID];
    snprintf(name, sizeof(name), "ids/%s", number);
    ssize_t n = readlinkat(cay->run, name, owner, sizeof(owner) - 1);
    if (n > 0 && (size_t)n == strlen(id) && memcmp(owner, id, (size_t)n) == 0)
        unlinkat(cay->run, name, 0);
}

/* A keeper that died early, or whose status is damaged, did not leave the number of its range:
 * search. */
static int release_range(struct cay *cay, const char *id, const struct status *status)
{
    char number[32];
    if (status->id_range) {
        snprintf(number, sizeof(number), "%llu", (unsigned long long)status->id_range - 1);
        release_if_owner(cay, id, number);
        return 0;
    }
    autofd int scan = openat(cay->run, "ids", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (scan < 0 && home_absent(errno))
        return 0;
    DIR *stream = scan < 0 ? NULL : fdopendir(scan);
    if (!stream)
        return -1;
    steal_fd(&scan);
    errno = 0;
    for (struct dirent *e; (e = readdir(stream)); errno = 0)
        release_if_owner(cay, id, e->d_name);
    int failed = errno;
    closedir(stream);
    return failed ? -1 : 0;
}

/*
 * What a prepared sandbox is made of has the name of the instance, which has a lock of its own:
 * sweeping that is somebody's already, or ours. False: it is not done yet.
 */
static bool sweep_instance(struct cay *cay, const char *instance)
{
    const char *checked;
    if (!instance || parse_id(instance, &checked, NULL) < 0 || !parse_id_reserved(instance))
        return true;
    for (int i = 0; i < INSTANCE_TRIES; i++) {
        bool kept = sandbox_life(cay, instance, NULL) == LIFE_KEPT;
        if (faccessat(cay->run, instance, F_OK, 0) < 0)
            return home_absent(errno);
        if (!kept)
            return false; /* something in it does not die, or it cannot be looked at */
        nanosleep(&(struct timespec){.tv_nsec = INSTANCE_PAUSE_NS}, NULL);
    }
    return false;
}

/* A keeper says how it is before it makes its socket. Whose status is empty beside one was not
 * about to be made: its status was cut, or removed and made anew (adopt_bare). */
static bool was_up(const struct cay *cay, const char *id)
{
    char path[CAY_MAX_ID + 8];
    snprintf(path, sizeof(path), "%s/ctl", id);
    return faccessat(cay->run, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int sandbox_sweep(struct cay *cay, const char *id, int status_fd)
{
    struct cay_error err;
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    bool known = record_read(status_fd, &buf, &err) >= 0;
    if (!known && err.code != CAY_E_NOT_FOUND && err.code != CAY_E_INVALID)
        return -1; /* there may be one, and what it says counts */
    enum last what =
        known || err.code == CAY_E_INVALID || was_up(cay, id) ? LAST_DAMAGED : LAST_NONE;
    if (known && status_decode(buf.data, buf.size, &status, NULL) == 0)
        what = LAST_KNOWN;
    /* A process that does not die keeps its cgroup; the run directory then stays for the next
     * sweep. */
    char group[HOME_GROUP_SIZE];
    home_group_name(cay, id, group);
    if (!sweep_instance(cay, status.instance) || cgroup_sweep(group, &err) < 0 ||
        release_range(cay, id, &status) < 0)
        return -1;
    if (what == LAST_KNOWN && status.ephemeral)
        cay_remove_tree_at(cay->sandboxes, id);
    else if (write_lost(cay, id, &status, what) < 0)
        return -1;
    return home_remove_run(cay->run, id);
}

static enum life unknown(const struct cay *cay, const char *id, int eno, struct cay_error *err)
{
    cay_fail_errno(err, eno, "cannot tell whether sandbox '%s' runs: cannot look at %s/%s", id,
                   cay->run_path, id);
    return LIFE_UNKNOWN;
}

static enum life ended_or_none(struct cay *cay, const char *id, struct cay_error *err)
{
    struct stat st;
    if (fstatat(cay->sandboxes, id, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return LIFE_ENDED;
    if (home_absent(errno))
        return LIFE_NONE;
    cay_fail_errno(err, errno, "cannot look for the record of sandbox '%s' in %s/sandboxes", id,
                   cay->state_path);
    return LIFE_UNKNOWN;
}

/* Whether it holds nothing but what is in the run directory of a sandbox. */
static bool holds_ours_only(int dir)
{
    static const char *const ours[] = {".", "..", "ctl", "status"};
    autofd int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    bool only = true;
    if (!stream)
        return false;
    steal_fd(&fd);
    for (struct dirent *e; only && (e = readdir(stream));) {
        only = false;
        for (size_t i = 0; i < CAY_COUNT(ours) && !only; i++)
            only = strcmp(e->d_name, ours[i]) == 0;
    }
    closedir(stream);
    return only;
}

/* Removes what has the name of the status file and is no file: no keeper can hold a lock by it. A
 * directory with something in it stays. One at a time, so that nobody removes the file that another
 * has made instead. */
static int clear_status(int dir)
{
    struct stat st;
    int result = 0;
    if (flock(dir, LOCK_EX) < 0)
        return -1;
    if (fstatat(dir, "status", &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
        result = unlinkat(dir, "status", S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
    flock(dir, LOCK_UN);
    return result;
}

/* A run directory whose creator died before it had a status file, or where that is gone. With
 * anything else in it, it is not a sandbox, and stays. */
static enum life adopt_bare(struct cay *cay, const char *id, int dir, int *status_fd,
                            struct cay_error *err)
{
    struct stat st;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (fstat(dir, &st) < 0)
        return unknown(cay, id, errno, err);
    bool young = st.st_ctim.tv_sec + GRACE_S > now.tv_sec && st.st_ctim.tv_sec <= now.tv_sec;
    if (cay->looks || (young && !cay->alone))
        return LIFE_KEPT;
    if (!holds_ours_only(dir))
        return ended_or_none(cay, id, err);
    if (clear_status(dir) < 0)
        return unknown(cay, id, errno, err);
    *status_fd = openat(dir, "status", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*status_fd >= 0)
        return LIFE_ENDED;
    return home_absent(errno) ? ended_or_none(cay, id, err) : unknown(cay, id, errno, err);
}

bool sandbox_kept(const struct cay *cay, const char *id)
{
    char path[CAY_MAX_ID + 8];
    snprintf(path, sizeof(path), "%s/status", id);
    autofd int fd = status_open(cay->run, path);
    return fd < 0 ? !home_absent(errno) && !home_misplaced(errno) : status_locked(fd);
}

/* ENDED: nobody holds its lock, and its status file is open. */
static enum life open_status(struct cay *cay, const char *id, int dir, int *status_fd,
                             struct cay_error *err)
{
    struct stat st;
    *status_fd = status_open(dir, "status");
    if (*status_fd < 0)
        return errno == ENOENT || home_misplaced(errno) ? adopt_bare(cay, id, dir, status_fd, err)
                                                        : unknown(cay, id, errno, err);
    if (status_locked(*status_fd))
        return LIFE_KEPT;
    if (fstat(*status_fd, &st) < 0)
        return unknown(cay, id, errno, err);
    if (!S_ISREG(st.st_mode)) {
        close_fd(status_fd);
        return adopt_bare(cay, id, dir, status_fd, err);
    }
    if (st.st_size > 0)
        return LIFE_ENDED;
    autofd int own = -1;
    enum life life = adopt_bare(cay, id, dir, &own, err);
    return own >= 0 ? LIFE_ENDED : life;
}

enum life sandbox_life(struct cay *cay, const char *id, struct cay_error *err)
{
    struct stat st;
    autofd int dir = home_open(cay->run, id);
    if (dir < 0)
        return home_absent(errno) ? ended_or_none(cay, id, err) : unknown(cay, id, errno, err);
    autofd int fd = -1;
    enum life life = open_status(cay, id, dir, &fd, err);
    if (fd < 0 || life != LIFE_ENDED)
        return life;
    /* Dead. Whoever gets the lock sweeps; whoever does not finds it done or being done. */
    if (cay->looks)
        return LIFE_KEPT;
    int eno = status_lock(fd) < 0 ? errno : 0;
    if (eno == EBADF)
        return ended_or_none(cay, id, err); /* nothing can be written there, nor removed */
    if (eno)
        return eno == EAGAIN || eno == EACCES ? LIFE_KEPT : unknown(cay, id, eno, err);
    if (fstat(fd, &st) < 0)
        return unknown(cay, id, errno, err);
    if (st.st_nlink > 0)
        (void)sandbox_sweep(cay, id, fd); /* if it fails its directory says so */
    return ended_or_none(cay, id, err);
}

/* The groups that have its name, and that of what it was prepared as; `names` ends with "". */
static void left_groups(struct cay *cay, const char *id, char names[3][HOME_GROUP_SIZE])
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    const char *checked;
    size_t n = 0;
    memset(names, 0, 3 * HOME_GROUP_SIZE);
    home_group_name(cay, id, names[0]);
    if (cgroup_left(names[0]))
        n = 1;
    else
        names[0][0] = 0;
    autofd int dir = home_open(cay->sandboxes, id);
    if (dir < 0 || record_read_at(dir, "status", &buf, NULL) < 0 ||
        status_decode(buf.data, buf.size, &status, NULL) < 0 || !status.instance ||
        parse_id(status.instance, &checked, NULL) < 0 || !parse_id_reserved(status.instance))
        return;
    /* One that has a directory has a lock, too. */
    if (faccessat(cay->run, status.instance, F_OK, 0) == 0 || !home_absent(errno))
        return;
    home_group_name(cay, status.instance, names[n]);
    if (!cgroup_left(names[n]))
        names[n][0] = 0;
}

int sandbox_sweep_groups(struct cay *cay, const char *id, int *claim, struct cay_error *err)
{
    char names[3][HOME_GROUP_SIZE];
    *claim = -1;
    left_groups(cay, id, names);
    if (!names[0][0])
        return 0;
    int claimed = create_claim(cay, id, claim, err);
    if (claimed == 0)
        return cay_fail(err, CAY_E_UNAVAILABLE, "sandbox '%s' is being made again by somebody else",
                        id);
    for (size_t i = 0; claimed > 0 && names[i][0]; i++)
        if (cgroup_sweep(names[i], err) < 0)
            claimed = -1;
    if (claimed < 0)
        sandbox_unclaim(cay, id, claim);
    return claimed < 0 ? -1 : 0;
}

void sandbox_unclaim(struct cay *cay, const char *id, int *claim)
{
    if (*claim >= 0)
        home_remove_run(cay->run, id);
    close_fd(claim);
}

/* "pool~" and 12 digits, then whatever home_group_name adds. */
static int sweep_prepared(const char *group, void *data)
{
    struct cay *cay = data;
    char id[sizeof(PARSE_POOL) + 12], name[HOME_GROUP_SIZE];
    const char *checked;
    snprintf(id, sizeof(id), "%s", group);
    if (!parse_id_reserved(id) || parse_id(id, &checked, NULL) < 0)
        return 0;
    home_group_name(cay, id, name);
    /* The directory is made before the group, and removed after it. */
    if (strcmp(name, group) == 0 && faccessat(cay->run, id, F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
        home_absent(errno))
        (void)cgroup_sweep_unused(group, NULL);
    return 0;
}

void sandbox_sweep_prepared(struct cay *cay)
{
    cgroup_list(sweep_prepared, cay);
}
