/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: what is said between caller, keeper, init and file worker. One struct holds every field
 * that any message has; each message uses the few that its comment names, the rest stays zero.
 *
 * Three conversations, all in frames over unix stream sockets:
 *
 *   caller - keeper   <run>/<id>/ctl, and the socketpair that a creator shares with the keeper that
 *                     it started. One request at a time; EXEC and ATTACH then turn the connection
 *                     into a stream.
 *   keeper - init     a socketpair. Requests carry a tag; init answers each with the same tag, and
 *                     reports EXITED on its own. The keeper believes nothing that init says.
 *   caller - worker   a socketpair whose one end the keeper gave to init and the other to the
 *                     caller (OP_FS): file contents never pass through the keeper.
 */
#ifndef CAY_WIRE_MSG_H
#define CAY_WIRE_MSG_H

#include "wire/field.h"
#include "wire/frame.h"

/* Each with what it carries, "+" the descriptors that travel with it, "->" what answers it. A
 * number is one byte, never reused. */
enum msg_type {
    /* ---- answers, in all three conversations */

    /* done; what it carries is named with the request */
    MSG_OK = 1,
    /* code, sys_errno, text; with code VERSION the text is the sender, by name and version */
    MSG_ERROR,

    /* ---- caller -> keeper */

    /* the creator's first, if there is no sandbox yet that it is for: as OP_CREATE, but the spec is
     * only like the one to come and ephemeral, and the status file is that of the instance; flags
     * NO_SETID -> READY when it is prepared. Then OP_CREATE */
    OP_PREPARE = 14,
    /* the creator's first: data = spec record, path = state directory, target = run directory,
     * name = image reference, + the locked status file -> READY */
    OP_CREATE = 15,
    /* argv | shell, env, cwd, user, flags PTY STDIN DETACH HOLD LAST KNOWN, rows, cols, timeout_ms,
     * size (bytes of one OUTPUT at most; 0: CAY_MAX_DATA), idle_ms (its stall limit: see flow.c of
     * the keeper; 0: CAY_STALL_MS, more than CAY_MAX_STALL_MS: none), name (its key), ttl_ms (its
     * lease: it is killed when nobody followed or waited for it for so long; 0: none), offset
     * (where the output of a known key begins)
     * -> STARTED, then (unless DETACH) OUTPUT..., EXIT. A key that is known starts nothing: the
     * answer is about the process that has it */
    OP_EXEC = 16,
    /* pid (0: the merged log), offset (UINT64_MAX: the oldest that is kept), flags FOLLOW, size and
     * idle_ms as above; flags STREAMS: from the first byte that is beyond `number` bytes of
     * standard output or `end` bytes of standard error, instead of offset
     * -> OUTPUT..., EXIT | OK (nothing more, or the sandbox has ended; offset, code, size and end
     * as of EXIT) | ERROR stalled */
    OP_ATTACH,
    /* pid, data | flags EOF; flags AT: offset says which byte of all input is the first, and what
     * was given before is skipped -> nothing on a stream connection, else OK */
    OP_STDIN,
    /* pid, rows, cols -> as OP_STDIN */
    OP_RESIZE,
    /* pid, timeout_ms (UINT64_MAX: for ever), flags ALOOF -> EXIT | ERROR timeout */
    OP_WAIT,
    /* pid, signal, flags TREE LEFT -> OK */
    OP_SIGNAL,
    /* -> PROC..., OK */
    OP_PROCS,
    /* -> OK: data = status record */
    OP_INFO,
    /* -> OK: data = spec record */
    OP_SPEC,
    /* -> STATS */
    OP_STATS,
    /* -> OK */
    OP_PAUSE,
    /* -> OK */
    OP_RESUME,
    /* timeout_ms = grace, flags REMOVE -> OK when all is gone */
    OP_STOP,
    /* flags SET_TTL SET_IDLE, ttl_ms, idle_ms -> OK; or pid, ttl_ms: the lease of a process -> as
     * OP_STDIN */
    OP_LIFETIME,
    /* user -> OK + the file channel */
    OP_FS,

    /* ---- keeper -> caller */

    /* to the creator: the sandbox is up; pid = init's on the host */
    MSG_READY = 48,
    /* pid, flags KNOWN: it was started before */
    MSG_STARTED,
    /* pid, stream, offset, number (its place in its own stream), data, code (if bytes before it are
     * missing: why) */
    MSG_OUTPUT,
    /* pid, offset (where the output ends, or ended for this stream), number (the oldest byte that
     * is kept) and the exit fields, text = why it did not end by itself, code as of OUTPUT; after
     * OUTPUT...: size and end = bytes of standard output and error that were printed */
    MSG_EXIT,
    /* pid, flags RUNNING PTY, exit fields, started_ms, offset (start), end, text = command, name =
     * EXIT's text */
    MSG_PROC,
    /* data = struct cay_stats, which only grows at its end: see msg_stats */
    MSG_STATS,

    /* ---- keeper -> init */

    /* argv | shell, env, cwd, user, flags PTY SUBREAPER, rows, cols, number (open files), name (its
     * cgroup below the cgroup descriptor; NULL: none), + stdin, stdout, stderr (none with PTY), and
     * with TASKS what the command enters its memory group through
     * -> SPAWNED | ERROR (the command could not be run: code, sys_errno, text) */
    INIT_SPAWN = 64,
    /* pid, signal; flags GROUP: to its process group; TREE: to all below it, used where there are
     * no cgroups -> OK | ERROR */
    INIT_SIGNAL,
    /* user, cwd, + the socket to serve as a file worker on -> OK | ERROR */
    INIT_FS,

    /* ---- init -> keeper */

    /* init is up */
    INIT_READY = 80,
    /* pid (as the sandbox counts), + with PTY the terminal's master */
    INIT_SPAWNED,
    /* pid, number = wait status, cpu_us, peak_memory */
    INIT_EXITED,

    /* ---- caller -> worker; each ends with OK or ERROR, and then the next may come */

    /* path, offset, number (bytes at most; 0: all), flags FOLLOW (first an ENTRY of the file that
     * was opened) -> DATA..., OK */
    FS_READ = 96,
    /* path, mode; then DATA... and END -> OK; a lost connection leaves the old file */
    FS_WRITE,
    /* path, flags FOLLOW -> ENTRY, OK */
    FS_STAT,
    /* path, number (depth; 0 and 1: one level), size (entries at most; 0: all) -> ENTRY..., OK */
    FS_LIST,
    /* path, mode: with parents; an existing directory is fine -> OK */
    FS_MKDIR,
    /* path, target -> OK */
    FS_MOVE,
    /* path, flags RECURSIVE -> OK */
    FS_REMOVE,
    /* path, glob, number (limit) -> ENTRY..., OK */
    FS_FIND,
    /* path, pattern, glob, number (limit), size (of the largest file that is searched; 0: any),
     * flags LITERAL IGNORE_CASE -> MATCH..., OK */
    FS_GREP,
    /* path, flags RECURSIVE -> OK once it watches, then CHANGE... until the caller hangs up */
    FS_WATCH,
    /* path -> DATA..., OK */
    FS_TAR_OUT,
    /* path; then DATA... and END -> OK */
    FS_TAR_IN,
    /* data, either way */
    FS_DATA,
    /* no more data; flags ABORT: throw it away */
    FS_END,

    /* ---- worker -> caller */

    /* path, target, mode (with its type bits), uid, gid, size, mtime_ns, inode, links */
    FS_ENTRY = 128,
    /* path, number (line), text */
    FS_MATCH,
    /* path, number (the letter of struct cay_change) */
    FS_CHANGE,
    /* the worker lives: every CAY_ALIVE_MS from the first request on, between any two others, also
     * outside of a request; its tag is 0. To callers that know it (WIRE_MINOR_ALIVE) */
    FS_ALIVE,
};

/* Of the lower 32, those that a request must not have if its reader does not know them; answers
 * may. The upper ones may be ignored. */
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
    MSG_F_LAST = 1 << 19,     /* EXEC: an ephemeral sandbox ends with this process */
    MSG_F_NO_SETID = 1 << 20, /* PREPARE: for one with mounts that call for it */
    MSG_F_KNOWN = 1 << 21,    /* EXEC: only if its key is known */
    MSG_F_ALOOF = 1 << 22,    /* WAIT: to know, not to stay with it: holds no lease */
    MSG_F_AT = 1 << 23,       /* STDIN: at this offset */
    MSG_F_LEFT = 1 << 24,     /* SIGNAL: because its client went away */
    MSG_F_HOLD = 1 << 25,     /* EXEC with DETACH: it waits a while for its first follower */
    MSG_F_STREAMS = 1 << 27,  /* ATTACH: by places in either stream */
    MSG_F_TASKS = 1 << 28,    /* SPAWN: comes with the command's v1 memory group */
    MSG_F_LENIENT = 1 << 30,  /* LIST, FIND, GREP: what cannot be read is left out without a word */
};

/* Bits that are not used yet; a new flag is taken from here. */
#define MSG_F_FREE (1ull << 26 | 1ull << 29 | 1ull << 31)

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

/* What every version has, major ones included: enough to stop a sandbox, and to say why not more.
 */
bool msg_is_common(unsigned type);
/* What to do about two versions that cannot talk to each other. */
#define MSG_VERSION_ADVICE \
    "every version can list, stop and remove it, all else takes a cay of its protocol"

/* The numbers of a STATS message: those that both versions know, the rest 0. -1: it is another
 * message. */
int msg_stats(const struct msg *msg, struct cay_stats *out, struct cay_error *err);

/* Turns an ERROR message into an error object; any other is one that nobody expected. Returns -1.
 */
int msg_to_error(const struct msg *msg, struct cay_error *err);

#endif
