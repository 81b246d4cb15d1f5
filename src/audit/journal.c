/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Appending. Invariants:
 *
 *   - Between calls the current file is exactly `size` bytes of whole lines, or `torn` says that
 *     bytes beyond must go before the next line.
 *   - seq and hash change only when a line is completely written.
 *   - Rotation and pruning may fail without failing an append: the log just grows on.
 */
#include "audit/journal.h"

#include "base/err.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

/* A second. The daemon that calls us holds a lock of its own, and has waited for who held that. */
#define LOCK_TRIES 34
#define LOCK_PAUSE_NS 30000000

#define NEXT_FILE "audit.new"

/* Taken from the disk ahead, in steps. Enough for two thousand removals. */
#define RESERVE (1u << 20)
#define RESERVE_STEP (16u << 10)

static uint64_t real_time_us(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) < 0 || now.tv_sec < 0)
        return 0;
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

int audit_open_current(int dir, struct cay_error *err)
{
    autofd int fd =
        openat(dir, AUDIT_CURRENT, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct stat st;
    if (fd < 0 && errno != EISDIR && errno != ELOOP && errno != ENXIO)
        return cay_fail_errno(err, errno, "cannot open %s of the audit log", AUDIT_CURRENT);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return steal_fd(&fd);
    return cay_fail(err, CAY_E_UNAVAILABLE, "%s of the audit log is not a file", AUDIT_CURRENT);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Blocks behind the end of a file of this size. False: the disk is full. A file system that cannot
 * do it has no reserve, and says so when a line does not fit. */
static bool take_room(int fd, uint64_t size)
{
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)size, RESERVE) == 0 ||
           (errno != ENOSPC && errno != EDQUOT);
}

static void keep_room(struct audit *audit)
{
    if (!audit->low && audit->reserved >= audit->size + RESERVE - RESERVE_STEP)
        return;
    audit->low = !take_room(audit->fd, audit->size);
    if (!audit->low)
        audit->reserved = audit->size + RESERVE;
}

/* Whether one more line fits for sure: what cannot be written down must not be done. */
static bool has_reserve(const struct audit *audit)
{
    return audit->reserved >= audit->size + RESERVE_STEP ||
           fallocate(audit->fd, FALLOC_FL_KEEP_SIZE, (off_t)audit->size, RESERVE_STEP) == 0;
}

/* An entry in a directory that nobody can find is lost. */
static int check_dir(const struct audit *audit, struct cay_error *err)
{
    struct stat st;
    if (fstat(audit->dir, &st) < 0)
        return cay_fail_errno(err, errno, "cannot look at the directory of the audit log");
    return st.st_nlink > 0 ? 0
                           : cay_fail(err, CAY_E_UNAVAILABLE,
                                      "the directory of the audit log was removed; start the "
                                      "daemon again");
}

int audit_room(struct audit *audit, bool removes, struct cay_error *err)
{
    if (check_dir(audit, err) < 0)
        return -1;
    keep_room(audit);
    if (!audit->low || (removes && has_reserve(audit)))
        return 0;
    return cay_fail(err, CAY_E_NO_SPACE,
                    "the disk is full, but for what is kept to write down removals");
}

/* A file that gets no more lines needs no more blocks; if it keeps them, that is no harm. */
static void give_back(const struct audit *audit)
{
    if (ftruncate(audit->fd, (off_t)audit->size) < 0)
        return;
}

/* What may have the last of the room. */
static bool is_removal(const struct audit_entry *entry)
{
    static const enum audit_action removals[] = {AUDIT_DELETE, AUDIT_STOP, AUDIT_KILL};
    if (entry->who && strcmp(entry->who, "engine") == 0)
        return true;
    for (size_t i = 0; i < CAY_COUNT(removals); i++)
        if (entry->action == removals[i])
            return true;
    return false;
}

/* ---- one line -------------------------------------------------------------------------------- */

/* Takes away what a failed write left behind. */
static int cut_tail(struct audit *audit, struct cay_error *err)
{
    if (audit->torn) {
        if (ftruncate(audit->fd, (off_t)audit->size) < 0)
            return cay_fail_errno(err, errno, "cannot mend the audit log");
        audit->reserved = 0;
    }
    audit->torn = false;
    return 0;
}

static int write_line(struct audit *audit, struct cay_error *err)
{
    if (cut_tail(audit, err) < 0)
        return -1;
    if (cay_write_all(audit->fd, audit->line.data, audit->line.size) == 0)
        return 0;
    cay_fail_errno(err, errno, "cannot write the audit log");
    audit->torn = true;
    cut_tail(audit, NULL);
    return -1;
}

static void rotate_if_full(struct audit *audit, size_t more);

/* Makes and writes the next line. audit->line holds it afterwards, with a newline. */
static int add(struct audit *audit, const struct audit_entry *entry, struct cay_error *err)
{
    char hash[AUDIT_HASH];
    const struct audit_stamp stamp = {.seq = audit->seq + 1,
                                      .wall_us = audit->options.wall_us(),
                                      .mono_us = cay_now_us(),
                                      .boot = audit->boot,
                                      .prev = audit->hash};
    if (audit_line_make(&audit->line, entry, &stamp, hash) < 0 ||
        buf_add(&audit->line, "\n", 1) < 0)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory for a line of the audit log");
    rotate_if_full(audit, audit->line.size);
    if (write_line(audit, err) < 0)
        return -1;
    if (audit->first == 0)
        audit->first = stamp.seq;
    audit->size += audit->line.size;
    pthread_mutex_lock(&audit->lock);
    audit->seq = stamp.seq;
    memcpy(audit->hash, hash, sizeof(hash));
    pthread_mutex_unlock(&audit->lock);
    return 0;
}

static int add_pending(struct audit *audit, struct audit_pending *pending, struct cay_error *err)
{
    if (!pending->wanted)
        return 0;
    struct audit_pending p = *pending;
    const struct audit_entry entry = {.who = "engine",
                                      .action = p.action,
                                      .detail = {.reason = p.reason,
                                                 .path = p.file[0] ? p.file : NULL,
                                                 .bytes = p.bytes ? &p.bytes : NULL,
                                                 .from = p.from ? &p.from : NULL,
                                                 .to_seq = p.from ? &p.to : NULL}};
    if (add(audit, &entry, err) < 0)
        return -1;
    pending->wanted = false;
    return 0;
}

/* ---- rotation -------------------------------------------------------------------------------- */

/* The new file exists before the old one is moved: a full disk is noticed while nothing has
 * changed. */
static int swap_files(struct audit *audit)
{
    char name[AUDIT_NAME];
    struct stat ours, st;
    audit_store_name(audit->first, name);
    if (fstat(audit->fd, &ours) < 0 ||
        fstatat(audit->dir, AUDIT_CURRENT, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        st.st_ino != ours.st_ino)
        return -1; /* somebody has put something else there: audit_sync notices */
    /* What a crash left, or something that is not a file. */
    cay_remove_tree_at(audit->dir, NEXT_FILE);
    autofd int fd = openat(audit->dir, NEXT_FILE,
                           O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || !take_room(fd, 0) || faccessat(audit->dir, name, F_OK, 0) == 0 ||
        renameat(audit->dir, AUDIT_CURRENT, audit->dir, name) < 0)
        return -1;
    if (renameat(audit->dir, NEXT_FILE, audit->dir, AUDIT_CURRENT) < 0) {
        renameat(audit->dir, name, audit->dir, AUDIT_CURRENT);
        return -1;
    }
    give_back(audit);
    audit->reserved = RESERVE;
    pthread_mutex_lock(&audit->lock);
    if (audit->retired >= 0) { /* nobody synced since the last time: do it here, once */
        fdatasync(audit->retired);
        close(audit->retired);
    }
    audit->retired = audit->fd;
    audit->fd = steal_fd(&fd);
    audit->renamed = true;
    pthread_mutex_unlock(&audit->lock);
    return 0;
}

/* Files beyond the number to keep: noted first, so that the log says itself why it starts late. */
static void plan_pruning(struct audit *audit)
{
    autobuf struct cay_buf list = CAY_BUF(AUDIT_MAX_FILES * sizeof(uint64_t));
    if (!audit->options.keep || audit_store_list(audit->dir, &list, NULL) < 0)
        return;
    size_t n = list.size / sizeof(uint64_t);
    if (n <= audit->options.keep)
        return;
    const uint64_t *firsts = (const uint64_t *)(const void *)list.data;
    audit->pruned = (struct audit_pending){.wanted = true,
                                           .action = AUDIT_PRUNED,
                                           .from = firsts[0],
                                           .to = firsts[n - audit->options.keep] - 1};
}

static void prune(struct audit *audit, uint64_t to)
{
    autobuf struct cay_buf list = CAY_BUF(AUDIT_MAX_FILES * sizeof(uint64_t));
    if (audit_store_list(audit->dir, &list, NULL) < 0)
        return;
    const uint64_t *firsts = (const uint64_t *)(const void *)list.data;
    for (size_t i = 0; i < list.size / sizeof(uint64_t) && firsts[i] <= to; i++) {
        char name[AUDIT_NAME];
        audit_store_name(firsts[i], name);
        unlinkat(audit->dir, name, 0);
    }
}

static void rotate_if_full(struct audit *audit, size_t more)
{
    if (audit->size == 0 || audit->size + more <= audit->rotate_at || audit->torn || audit->low)
        return;
    if (swap_files(audit) < 0) {
        /* The file grows on; not tried again for every line. */
        audit->rotate_at = audit->size + more + audit->options.rotate_bytes / 16;
        return;
    }
    audit->size = audit->first = 0;
    audit->rotate_at = audit->options.rotate_bytes;
    plan_pruning(audit);
}

/* Somebody removed the current file: what was in it is lost, but not that it was. */
static int replace_gone(struct audit *audit, struct cay_error *err)
{
    struct stat st;
    if (fstat(audit->fd, &st) < 0 || st.st_nlink > 0)
        return 0;
    if (check_dir(audit, err) < 0)
        return -1;
    autofd int fd = audit_open_current(audit->dir, err);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot look at the audit log");
    pthread_mutex_lock(&audit->lock);
    close(audit->fd);
    audit->fd = steal_fd(&fd);
    pthread_mutex_unlock(&audit->lock);
    audit->recovered = (struct audit_pending){.wanted = true,
                                              .action = AUDIT_RECOVERED,
                                              .reason = "the file was removed",
                                              .from = audit->first,
                                              .to = audit->seq};
    audit->size = (uint64_t)st.st_size;
    audit->first = audit->reserved = 0;
    audit->torn = false;
    return 0;
}

/* Somebody emptied the current file: the same. One that was cut elsewhere shows by itself. */
static void notice_emptied(struct audit *audit)
{
    struct stat st;
    if (audit->size == 0 || audit->torn || fstat(audit->fd, &st) < 0 || st.st_size != 0)
        return;
    audit->recovered = (struct audit_pending){.wanted = true,
                                              .action = AUDIT_RECOVERED,
                                              .reason = "the file was emptied",
                                              .from = audit->first,
                                              .to = audit->seq};
    audit->size = audit->first = audit->reserved = 0;
}

/* ---- interface ------------------------------------------------------------------------------- */

int audit_append(struct audit *audit, const struct audit_entry *entry, struct audit_added *added,
                 struct cay_error *err)
{
    const uint64_t first = audit->first, before = audit->seq;
    if (replace_gone(audit, err) < 0)
        return -1;
    notice_emptied(audit);
    if (audit_room(audit, is_removal(entry), err) < 0 ||
        add_pending(audit, &audit->recovered, err) < 0)
        return -1;
    if (audit->pruned.wanted) {
        uint64_t to = audit->pruned.to;
        if (add_pending(audit, &audit->pruned, err) < 0)
            return -1;
        prune(audit, to);
    }
    if (add(audit, entry, err) < 0)
        return -1;
    if (added)
        *added = (struct audit_added){.seq = audit->seq,
                                      .line = audit->line.data,
                                      .size = audit->line.size - 1,
                                      .rotated = audit->first != first,
                                      .before = before};
    return 0;
}

static int sync_files(struct audit *audit, int fd, int retired, bool renamed, struct cay_error *err)
{
    if ((retired >= 0 && fdatasync(retired) < 0) || fdatasync(fd) < 0 ||
        (renamed && fsync(audit->dir) < 0))
        return cay_fail_errno(err, errno, "cannot sync the audit log");
    return 0;
}

static int sync_locked(struct audit *audit, struct cay_error *err)
{
    struct audit_head head;
    pthread_mutex_lock(&audit->lock);
    autofd int retired = steal_fd(&audit->retired);
    autofd int fd = fcntl(audit->fd, F_DUPFD_CLOEXEC, 3);
    bool renamed = audit->renamed;
    audit->renamed = false;
    head.seq = audit->seq;
    memcpy(head.hash, audit->hash, sizeof(head.hash));
    pthread_mutex_unlock(&audit->lock);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot sync the audit log");
    if (head.seq == audit->synced && retired < 0)
        return 0;
    if (sync_files(audit, fd, retired, renamed, err) < 0 ||
        audit_head_write(audit->dir, &head, err) < 0)
        return -1;
    audit->synced = head.seq;
    return 0;
}

int audit_sync(struct audit *audit, struct cay_error *err)
{
    pthread_mutex_lock(&audit->sync_lock);
    int result = sync_locked(audit, err);
    pthread_mutex_unlock(&audit->sync_lock);
    return result;
}

/* Ours alone: whoever else can write there can rewrite history. */
static int open_dir(const char *path, struct cay_error *err)
{
    struct stat st;
    autofd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT && cay_mkdir_all(path, 0700) == 0)
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot open the audit log %s", path);
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return cay_fail(err, CAY_E_DENIED, "%s belongs to somebody else or is writable by others",
                        path);
    /* A daemon that was killed leaves the lock to a child on its way to be another program, or to a
     * thread of its own that waits for the disk. */
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return steal_fd(&fd);
        if (errno != EWOULDBLOCK)
            break;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
    }
    if (errno == EWOULDBLOCK)
        return cay_fail(err, CAY_E_CONFLICT, "another daemon writes the audit log %s", path);
    return cay_fail_errno(err, errno, "cannot lock the audit log %s", path);
}

static void read_boot_id(char *out, size_t size)
{
    if (cay_read_file_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", out, size) < 0)
        out[0] = 0;
    out[strcspn(out, "\n")] = 0;
}

int audit_open(const char *dir, const struct audit_options *options, struct audit **out,
               struct cay_error *err)
{
    struct audit *audit = calloc(1, sizeof(*audit));
    struct cay_error why = {0};
    if (!audit)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    audit->options = options ? *options : (struct audit_options){0};
    if (!audit->options.rotate_bytes)
        audit->options.rotate_bytes = AUDIT_ROTATE_BYTES;
    if (!audit->options.wall_us)
        audit->options.wall_us = real_time_us;
    audit->rotate_at = audit->options.rotate_bytes;
    audit->line = CAY_BUF(AUDIT_MAX_LINE);
    audit->fd = audit->retired = -1;
    audit->synced = UINT64_MAX;
    pthread_mutex_init(&audit->lock, NULL);
    pthread_mutex_init(&audit->sync_lock, NULL);
    read_boot_id(audit->boot, sizeof(audit->boot));
    audit->dir = open_dir(dir, err);
    if (audit->dir < 0 || audit_recover(audit, err) < 0) {
        bool found = audit->dir >= 0;
        audit_close(audit);
        return found ? cay_fail_context(err, "%s", dir) : -1;
    }
    /* A full disk must not keep the daemon from starting: what is pending is told later. */
    if ((add_pending(audit, &audit->recovered, &why) < 0 && why.code != CAY_E_NO_SPACE) ||
        (audit_sync(audit, &why) < 0 && why.code != CAY_E_NO_SPACE)) {
        if (err)
            *err = why;
        audit_close(audit);
        return cay_fail_context(err, "%s", dir);
    }
    *out = audit;
    return 0;
}

uint64_t audit_last(const struct audit *audit, uint64_t *before_ms)
{
    *before_ms = audit->before_ms;
    return audit->seq;
}

void audit_close(struct audit *audit)
{
    if (!audit)
        return;
    if (audit->fd >= 0)
        audit_sync(audit, NULL);
    close_fd(&audit->fd);
    close_fd(&audit->retired);
    close_fd(&audit->dir);
    buf_done(&audit->line);
    pthread_mutex_destroy(&audit->lock);
    pthread_mutex_destroy(&audit->sync_lock);
    free(audit);
}
