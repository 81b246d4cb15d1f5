/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: what is said between caller, keeper, init and file worker. One struct holds every field that
 * any message has; each message uses the few that its line below names, the rest stays zero.
 *
 * Three conversations, all in frames over unix stream sockets:
 *
 *   caller - keeper   <run>/<id>/ctl (and the socketpair that a creator shares with the keeper it spawned).
 *                     One request at a time; EXEC and ATTACH then turn the connection into a stream.
 *   keeper - init     a socketpair. Requests carry a tag; init answers each with the same tag and also
 *                     reports EXITED on its own. The keeper believes nothing that init says.
 *   caller - worker   a socketpair whose one end the keeper gave to init and the other to the caller
 *                     (OP_FS): file contents never pass through the keeper.
 */
#ifndef CAY_WIRE_MSG_H
#define CAY_WIRE_MSG_H

#include "wire/field.h"
#include "wire/frame.h"

enum msg_type {
    /* Answers, used in all three conversations. */
    MSG_OK = 1, /* done; what it carries is named with the request */
    MSG_ERROR,  /* code, sys_errno, text */

    /* caller -> keeper */
    OP_CREATE = 15, /* creator's first: data = spec record, path = state directory, target = run directory,
                       name = image reference + 1 descriptor: the locked status file -> READY */
    OP_EXEC = 16, /* argv | shell, env, cwd, user, flags, rows, cols, timeout_ms, data (stdin of a whole run)
                     -> STARTED, then (unless MSG_F_DETACH) OUTPUT..., EXIT */
    OP_ATTACH,    /* pid (0: merged log), offset, flags FOLLOW -> OUTPUT..., EXIT | OK (nothing more) */
    OP_STDIN,     /* pid, data | flags EOF -> no answer on a stream connection, else OK */
    OP_RESIZE,    /* pid, rows, cols -> as OP_STDIN */
    OP_WAIT,      /* pid, timeout_ms (UINT64_MAX: for ever) -> EXIT | ERROR timeout */
    OP_SIGNAL,    /* pid, signal, flags TREE -> OK */
    OP_PROCS,     /* -> PROC..., OK */
    OP_INFO,      /* -> OK: data = status record */
    OP_SPEC,      /* -> OK: data = spec record */
    OP_STATS,     /* -> STATS */
    OP_PAUSE,     /* -> OK */
    OP_RESUME,    /* -> OK */
    OP_STOP,      /* timeout_ms = grace, flags REMOVE -> OK when all is gone */
    OP_LIFETIME,  /* flags SET_TTL, SET_IDLE; ttl_ms, idle_ms -> OK */
    OP_FS,        /* user -> OK + 1 descriptor: the file channel */

    /* keeper -> caller */
    MSG_READY = 48, /* to the creator: the sandbox is up; pid = init's host pid */
    MSG_STARTED,    /* pid */
    MSG_OUTPUT,     /* pid, stream, offset, data */
    MSG_EXIT,       /* pid, offset (end of output) and the exit fields */
    MSG_PROC,       /* pid, flags RUNNING, PTY; exit fields; started_ms, offset (start), end; text = command */
    MSG_STATS,      /* data = struct cay_stats, as both sides are of one build (the frame version says so) */

    /* keeper -> init */
    INIT_SPAWN = 64, /* argv | shell, env, cwd, user, flags PTY, SUBREAPER, rows, cols, name (of its cgroup
                        below the cgroup descriptor; NULL: none), number (open files)
                        + descriptors: stdin, stdout, stderr (none with PTY)
                        -> SPAWNED | ERROR (the command could not be run: code, sys_errno, text) */
    INIT_SIGNAL,     /* pid, signal (to its process group with flags GROUP; TREE: to all below it in the
                        process tree, used where there are no cgroups) -> OK | ERROR */
    INIT_FS,         /* user, cwd + 1 descriptor: become a file worker on it -> OK | ERROR */

    /* init -> keeper */
    INIT_READY = 80, /* init is up */
    INIT_SPAWNED,    /* pid (as the sandbox counts); + 1 descriptor with PTY: the terminal's master */
    INIT_EXITED,     /* pid, number = wait status, cpu_us, peak_memory */

    /* caller -> worker; each ends with OK or ERROR, and then the next may come */
    FS_READ = 96, /* path, offset, number (bytes at most; 0: all) -> DATA... OK */
    FS_WRITE,     /* path, mode; then DATA... and END -> OK; a lost connection leaves the old file */
    FS_STAT,      /* path, flags FOLLOW -> ENTRY OK */
    FS_LIST,      /* path, number (depth; 0 and 1: one level) -> ENTRY... OK */
    FS_MKDIR,     /* path, mode: with parents; an existing directory is fine -> OK */
    FS_MOVE,      /* path, target -> OK */
    FS_REMOVE,    /* path, flags RECURSIVE -> OK */
    FS_FIND,      /* path, glob, number (limit) -> ENTRY... OK */
    FS_GREP,      /* path, pattern, glob, number (limit), flags LITERAL, IGNORE_CASE -> MATCH... OK */
    FS_WATCH,     /* path, flags RECURSIVE -> OK once it watches, then CHANGE... until the caller hangs up */
    FS_TAR_OUT,   /* path -> DATA... OK */
    FS_TAR_IN,    /* path; then DATA... and END -> OK */
    FS_DATA,      /* data (either way) */
    FS_END,       /* caller -> worker: no more data; flags ABORT: throw it away */

    /* worker -> caller */
    FS_ENTRY = 128, /* path, target, mode (with its type bits), uid, gid, size, mtime_ns, inode, links */
    FS_MATCH,       /* path, number (line), text */
    FS_CHANGE,      /* path, number (the letter of struct cay_change) */
};

enum msg_flag {
    MSG_F_PTY = 1 << 0,
    MSG_F_STDIN = 1 << 1,  /* keep standard input open for OP_STDIN */
    MSG_F_DETACH = 1 << 2, /* EXEC: answer STARTED only */
    MSG_F_FOLLOW = 1 << 3,
    MSG_F_EOF = 1 << 4,
    MSG_F_TREE = 1 << 5,
    MSG_F_GROUP = 1 << 6,
    MSG_F_REMOVE = 1 << 7,
    MSG_F_SET_TTL = 1 << 8,
    MSG_F_SET_IDLE = 1 << 9,
    MSG_F_RUNNING = 1 << 10,
    MSG_F_TIMED_OUT = 1 << 11,
    MSG_F_TRUNCATED = 1 << 12,
    MSG_F_OOM = 1 << 13,
    MSG_F_RECURSIVE = 1 << 14,
    MSG_F_LITERAL = 1 << 15,
    MSG_F_IGNORE_CASE = 1 << 16,
    MSG_F_ABORT = 1 << 17,
    MSG_F_SUBREAPER = 1 << 18,
    MSG_F_LAST = 1 << 19, /* EXEC: an ephemeral sandbox ends with this process */
};

struct msg {
    uint16_t type;
    uint32_t tag;

    uint64_t flags, pid, signal, number, stream, offset, end;
    uint64_t code, sys_errno;
    const char *text;

    const char *const *argv, *const *env;
    const char *shell, *cwd, *user, *name;
    uint64_t rows, cols, timeout_ms, ttl_ms, idle_ms;
    struct wire_bytes data;

    /* exit fields: exit_code, signal, flags TIMED_OUT, TRUNCATED, OOM, and */
    uint64_t exit_code, duration_us, cpu_us, peak_memory, started_ms;

    const char *path, *target, *glob, *pattern;
    uint64_t mode, uid, gid, size, mtime_ns, inode, links;
};

/* Appends the message as one frame that announces `fds` descriptors. */
int msg_encode(struct cay_buf *buf, const struct msg *msg, uint8_t fds);
/* Decodes a frame; the message borrows from the frame's payload. Free with msg_done. */
int msg_decode(const struct frame *frame, struct msg *out, struct cay_error *err);
void msg_done(struct msg *msg);
#define automsg __attribute__((cleanup(msg_done)))

/* Turns an ERROR message into an error object; returns -1. */
int msg_to_error(const struct msg *msg, struct cay_error *err);

#endif
