/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcay: sandboxes on this machine, with no daemon.
 *
 * Conventions
 *   - Every call that can fail returns 0 or a positive value on success, and -1 on failure; then it
 *     fills the caller's `struct cay_error`. The error is a plain value, never allocated and never
 *     freed; NULL is accepted where the caller does not care.
 *   - Inputs are borrowed for the length of the call. Outputs are written only on success. What a
 *     call hands out is owned by the caller and given back with the `_free`, `_close` or `_done`
 *     named beside it, all of which accept NULL and zeroed objects.
 *   - Handles hold no connection between calls, so one handle may be used by several threads at
 *     once. A `struct cay_proc` or `struct cay_fs` is one open stream: one thread at a time.
 *   - No sandbox depends on its caller staying alive, except one created with `ephemeral`.
 */
#ifndef CAY_CAY_H
#define CAY_CAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CAY_API __attribute__((visibility("default")))
#define CAY_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define CAY_API
#define CAY_PRINTF(f, a)
#endif

/* ---- errors ---------------------------------------------------------------------------------- */

/*
 * The one table of error codes: name in C, name in JSON, HTTP status, meaning. Everything that
 * speaks of errors (this enum, the CLI's --json, the daemon, the SDKs) is generated from it. Codes
 * travel between programs of different versions: new ones come last.
 */
#define CAY_ERROR_TABLE(X)                                                                    \
    X(INVALID, "invalid", 400, "the request itself is wrong")                                 \
    X(DENIED, "denied", 403, "not permitted")                                                 \
    X(NOT_FOUND, "not_found", 404, "no such sandbox, process, file or image")                 \
    X(TIMEOUT, "timeout", 408, "the time given ran out")                                      \
    X(CONFLICT, "conflict", 409, "exists already, with another content or in another state")  \
    X(GONE, "gone", 410, "the sandbox has ended")                                             \
    X(TOO_LARGE, "too_large", 413, "larger than a stated maximum")                            \
    X(LIMIT, "limit", 429, "a limit on number or rate is reached")                            \
    X(INTERNAL, "internal", 500, "a fault in cay or an unexpected answer of the kernel")      \
    X(UNSUPPORTED, "unsupported", 501, "this host, image or version cannot do it")            \
    X(UNAVAILABLE, "unavailable", 503, "not now; trying again may help")                      \
    X(NO_SPACE, "no_space", 507, "out of disk space, inodes or memory")                       \
    X(UNAUTHORIZED, "unauthorized", 401, "no token, or one that is not known or has expired") \
    X(LOST, "lost", 410, "output that was asked for is not kept any more")                    \
    X(STALLED, "stalled", 408, "the reader took nothing for too long and was cut off")        \
    X(VERSION, "version", 409, "the keeper of the sandbox is of another version of cay")

enum cay_code {
    CAY_OK = 0,
#define CAY_X(name, json, http, text) CAY_E_##name,
    CAY_ERROR_TABLE(CAY_X)
#undef CAY_X
};

struct cay_error {
    enum cay_code code;
    int sys_errno;  /* the errno behind it, or 0 */
    char text[500]; /* one line: what failed, on what, why, what to do; never empty
                     * after a failure */
};

CAY_API const char *cay_code_name(enum cay_code code); /* "not_found" */
CAY_API int cay_code_http(enum cay_code code);         /* 404 */

/* ---- a state directory ----------------------------------------------------------------------- */

struct cay;

struct cay_options {
    const char
        *state_dir; /* NULL: $CAY_STATE_DIR, else /var/lib/cay as root, $XDG_DATA_HOME/cay else */
    const char *run_dir; /* NULL: $CAY_RUN_DIR, else /run/cay as root, $XDG_RUNTIME_DIR/cay else */
    const char
        *config; /* NULL: $CAY_CONFIG, else /etc/cay/cay.conf, $XDG_CONFIG_HOME/cay/cay.conf */
};

CAY_API int cay_open(const struct cay_options *options, struct cay **out, struct cay_error *err);
CAY_API void cay_close(struct cay *cay);
CAY_API const char *cay_version(void);

/* ---- what a sandbox is made of --------------------------------------------------------------- */

enum cay_profile {
    CAY_PROFILE_UNSET = 0, /* what the config file says, else default */
    CAY_PROFILE_DEFAULT,
    CAY_PROFILE_STRICT,
    CAY_PROFILE_NESTED,
};

struct cay_mount {
    const char *source; /* host path, resolved once when the sandbox is made */
    const char *target; /* absolute path inside; made if it is not there */
    bool read_only;
    bool no_links; /* refused if a symbolic link is on the way to `source` */
};

/*
 * Zero, NULL and empty mean "the default". An option that this host cannot honour is refused with
 * CAY_E_UNSUPPORTED, never ignored.
 */
struct cay_spec {
    /* [a-z0-9][a-z0-9._-]{0,62}; NULL: 12 random hex digits. The sandboxes of a tenant, see cayd,
     * have its name and '~' in front of that. */
    const char *id;
    const char *image; /* "host", "dir:/path", or an alias of the config file */
    const char
        *user;       /* default user of execs: name or uid[:gid] of the sandbox's own /etc/passwd */
    const char *cwd; /* default working directory of execs */
    const char *network; /* "deny-all" */
    enum cay_profile profile;
    uint64_t memory; /* bytes; default 2 GiB */
    uint64_t cpus;   /* thousandths of a CPU; default: no cap */
    uint64_t pids;   /* default 1024 */
    uint64_t
        disk; /* bytes that the sandbox may write; default: 1 GiB, or half of memory if smaller */
    uint64_t inodes; /* files it may make; default: one for each 4 KiB of disk */
    uint64_t fds;    /* open files for each process; default 4096 */
    uint64_t output; /* bytes of output kept for each process; default 8 MiB, the newest are kept */
    uint64_t ttl_ms; /* end it this long after its start, whatever it does; 0: never */
    uint64_t idle_ms; /* end it after this long with no process, no call and no attached reader; 0:
                         never */
    const char *const *env;    /* "K=V", NULL-terminated: the environment of every exec */
    const char *const *labels; /* "K=V", NULL-terminated */
    const struct cay_mount *mounts;
    size_t n_mounts;
    bool ephemeral; /* gone without trace when its creator's handle closes or its creator dies */
    bool no_links;  /* the path of a "dir:" image must not lead through a symbolic link: it was
                       resolved and judged as it is */
};

enum cay_state {
    CAY_STATE_CREATING = 0,
    CAY_STATE_RUNNING,
    CAY_STATE_PAUSED,
    CAY_STATE_EXITED, /* stopped or killed on request, or by its own hand */
    CAY_STATE_OOM,    /* its own init was killed for lack of memory */
    CAY_STATE_TTL,    /* its time to live ended */
    CAY_STATE_IDLE,   /* nothing used it for its idle time */
    CAY_STATE_LOST,   /* its keeper died, or the host went down */
};

CAY_API const char *cay_state_name(enum cay_state state);

struct cay_info {
    char id[96];
    enum cay_state state;
    char reason[160]; /* why it is in this state, in words */
    char image[256];
    uint64_t created_ms;  /* wall clock, milliseconds since 1970 */
    uint64_t ended_ms;    /* 0 while it lives */
    uint64_t ttl_left_ms; /* 0: no ttl */
    pid_t keeper_pid;     /* 0 when it has ended */
    pid_t init_pid;       /* host pid of the sandbox's pid 1; 0 when it has ended */
    uint32_t processes;   /* execs now running */
    char **labels;        /* "K=V", NULL-terminated, owned */
};

struct cay_stats {
    uint64_t cpu_us, cpu_user_us, cpu_system_us;
    uint64_t memory, memory_peak, memory_max;
    uint64_t pids, pids_max;
    uint64_t io_read, io_write;
    uint64_t disk, disk_max, inodes, inodes_max;
    uint64_t output, output_max; /* bytes of output kept for later readers; on the host's disk */
    uint64_t oom_kills;          /* commands, and file workers, killed for lack of memory */
};

/* ---- lifecycle ------------------------------------------------------------------------------- */

struct cay_sandbox;

/*
 * Creates a sandbox and returns when it is ready to run commands. With an id that exists: the same
 * spec gives the same sandbox (idempotent), another spec CAY_E_CONFLICT.
 */
CAY_API int cay_create(struct cay *cay, const struct cay_spec *spec, struct cay_sandbox **out,
                       struct cay_error *err);
CAY_API int cay_get(struct cay *cay, const char *id, struct cay_sandbox **out,
                    struct cay_error *err);
CAY_API void cay_sandbox_free(
    struct cay_sandbox *sandbox); /* the sandbox lives on, unless ephemeral */
CAY_API const char *cay_sandbox_id(const struct cay_sandbox *sandbox);

struct cay_filter {
    bool all;                  /* also those that have ended */
    const char *const *labels; /* "K=V" or "K", NULL-terminated: all must match */
};

/* Calls `each` for every sandbox, ordered by creation; a non-zero return of `each`
 * ends the walk. */
CAY_API int cay_list(struct cay *cay, const struct cay_filter *filter,
                     int (*each)(const struct cay_info *info, void *data), void *data,
                     struct cay_error *err);
CAY_API int cay_info(struct cay_sandbox *sandbox, struct cay_info *out, struct cay_error *err);
CAY_API void cay_info_done(struct cay_info *info);
/* The spec it was made from, as one JSON object, owned. Environment values are part of it. */
CAY_API int cay_inspect(struct cay_sandbox *sandbox, char **json, struct cay_error *err);
CAY_API int cay_stats(struct cay_sandbox *sandbox, struct cay_stats *out, struct cay_error *err);

CAY_API int cay_pause(struct cay_sandbox *sandbox, struct cay_error *err);
CAY_API int cay_resume(struct cay_sandbox *sandbox, struct cay_error *err);
/* SIGTERM to every process, SIGKILL after `grace_ms`; returns when all is gone.
 * Its record stays. */
CAY_API int cay_stop(struct cay_sandbox *sandbox, uint64_t grace_ms, struct cay_error *err);
CAY_API int cay_kill(struct cay_sandbox *sandbox, struct cay_error *err);
/* Removes the record and everything else; a running one only with `force`. */
CAY_API int cay_remove(struct cay *cay, const char *id, bool force, struct cay_error *err);

struct cay_lifetime {
    bool set_ttl, set_idle;
    uint64_t ttl_ms, idle_ms; /* counted from now; 0: never */
};
CAY_API int cay_set_lifetime(struct cay_sandbox *sandbox, const struct cay_lifetime *lifetime,
                             struct cay_error *err);

/* ---- running things -------------------------------------------------------------------------- */

struct cay_exec {
    const char *const *argv; /* NULL-terminated; looked up in the sandbox's PATH */
    const char
        *shell; /* instead of argv: run by /bin/bash -c, or /bin/sh -c where there is no bash */
    const char *const *env; /* "K=V", on top of the sandbox's */
    const char *cwd;
    const char *user;
    const void *input; /* whole standard input of cay_run; none: end of file at once */
    size_t input_size;
    bool want_stdin; /* cay_start: keep standard input open for cay_proc_write */
    bool pty;
    bool detach; /* cay_start: nobody is going to follow its output from the beginning */
    uint16_t rows, cols;
    uint64_t timeout_ms; /* 0: none */
    /* The process waits for whoever follows it. A follower that takes nothing for this long is cut
     * off, and the process goes on; 0: after a minute, UINT64_MAX: never. */
    uint64_t stall_ms;
};

/* How a process ended. exit_code: as a shell tells it (128+n for a signal, 126/127), 124 on
 * timeout. */
struct cay_exit {
    pid_t pid;
    int exit_code;
    int signal; /* 0 unless a signal ended it */
    bool timed_out;
    bool oom;       /* killed with all it started, because the sandbox was out of memory */
    bool truncated; /* some of the output that was asked for was not kept, oldest first */
    uint64_t duration_us, cpu_us, peak_memory;
    char reason[96]; /* why, if it did not end by itself: timed out, its sandbox removed, ... */
};

struct cay_result {
    struct cay_exit exit;
    char *out, *err; /* owned; a NUL follows the last byte */
    size_t out_size, err_size;
};

/* Runs to the end and hands over everything. Non-zero exit codes are results, not errors. */
CAY_API int cay_run(struct cay_sandbox *sandbox, const struct cay_exec *exec,
                    struct cay_result *out, struct cay_error *err);
CAY_API void cay_result_done(struct cay_result *result);

struct cay_proc;

enum cay_event_kind {
    CAY_EVENT_OUTPUT = 1,
    CAY_EVENT_EXIT,
    CAY_EVENT_GAP, /* `size` bytes from `offset` on are not kept any more; what follows is */
};

struct cay_event {
    enum cay_event_kind kind;
    int stream; /* OUTPUT: 1 or 2 */
    uint64_t
        offset; /* OUTPUT: of data[0], counted over both streams; EXIT: one past the last byte */
    const char *data; /* borrowed until the next call on this stream */
    size_t size;
    /* GAP, and the first event of CAY_FROM_KEPT: why what was before is not kept. CAY_E_LIMIT:
     * more was printed than the sandbox's `output` keeps; CAY_E_NO_SPACE: the host's disk did not
     * take it; CAY_OK: not known, or there was nothing. */
    enum cay_code why;
    struct cay_exit exit; /* EXIT */
};

/* Starts a process that lives on without its caller, and attaches to its output. */
CAY_API int cay_start(struct cay_sandbox *sandbox, const struct cay_exec *exec,
                      struct cay_proc **out, struct cay_error *err);
/*
 * Creates a sandbox and starts a command in it, in one step and faster than in two. With
 * `ephemeral` the sandbox ends with this command: its keeper removes it right then, and nobody
 * waits for that.
 */
CAY_API int cay_create_start(struct cay *cay, const struct cay_spec *spec,
                             const struct cay_exec *exec, struct cay_sandbox **out,
                             struct cay_proc **proc, struct cay_error *err);
/* As `from`: the oldest byte that is kept. */
#define CAY_FROM_KEPT UINT64_MAX
/* Attaches at any offset, also after the end. pid 0: the merged output of all processes, never
 * ends. With `follow` the process waits for the reader, as for cay_start. */
CAY_API int cay_attach(struct cay_sandbox *sandbox, pid_t pid, uint64_t from, bool follow,
                       struct cay_proc **out, struct cay_error *err);
/* 1: an event; 0: timeout_ms passed (-1: wait for ever), or nothing more when not following. */
CAY_API int cay_proc_next(struct cay_proc *proc, int timeout_ms, struct cay_event *out,
                          struct cay_error *err);
CAY_API pid_t cay_proc_pid(const struct cay_proc *proc);
CAY_API int cay_proc_fd(
    const struct cay_proc *proc); /* borrowed, for poll(); call next() with 0 then */
CAY_API int cay_proc_write(struct cay_proc *proc, const void *data, size_t size,
                           struct cay_error *err);
CAY_API int cay_proc_close_stdin(struct cay_proc *proc, struct cay_error *err);
CAY_API int cay_proc_resize(struct cay_proc *proc, uint16_t rows, uint16_t cols,
                            struct cay_error *err);
/* For a stream that was silent, or took no input, for long: asks whether somebody is there at all.
 * 0: yes, go on; -1 with CAY_E_UNAVAILABLE: not within 10 s. What waits without end (next() with
 * -1, write()) does so by itself once a minute. */
CAY_API int cay_proc_check(struct cay_proc *proc, struct cay_error *err);
CAY_API void cay_proc_free(struct cay_proc *proc); /* detaches; the process lives on */

struct cay_proc_info {
    pid_t pid;
    bool running, pty;
    struct cay_exit exit; /* when it has ended */
    uint64_t started_ms;  /* wall clock */
    uint64_t output_start, output_end;
    char command[256]; /* for people: argv joined, shortened */
};

/* Ended processes are kept until there are too many; an unknown pid is CAY_E_NOT_FOUND. */
CAY_API int cay_procs(struct cay_sandbox *sandbox,
                      int (*each)(const struct cay_proc_info *info, void *data), void *data,
                      struct cay_error *err);
/* timeout_ms 0 probes once, UINT64_MAX waits for ever. CAY_E_TIMEOUT while it runs. */
CAY_API int cay_wait(struct cay_sandbox *sandbox, pid_t pid, uint64_t timeout_ms,
                     struct cay_exit *out, struct cay_error *err);
/* To the process, or with `tree` to everything it started. Signalling what has ended is not an
 * error. */
CAY_API int cay_signal(struct cay_sandbox *sandbox, pid_t pid, int signal, bool tree,
                       struct cay_error *err);

/* ---- files ----------------------------------------------------------------------------------- */

struct cay_fs;

struct cay_stat {
    char type; /* 'f' file, 'd' directory, 'l' link, 'p' pipe, 's' socket, 'c' or 'b' device */
    uint32_t mode, uid, gid;
    uint64_t size, inode, links;
    int64_t mtime_ns;   /* before 1970 it is negative */
    const char *name;   /* list, find: path relative to what was asked for; borrowed */
    const char *target; /* of a link, else NULL; borrowed */
};

struct cay_match {
    const char *path; /* borrowed */
    uint64_t line;
    const char *text; /* borrowed; without its newline, cut at 4 KiB */
};

struct cay_change {
    char kind; /* 'c' created, 'm' modified, 'd' deleted, 'r' renamed to, 'o' events were lost */
    const char *path;
};

typedef int (*cay_sink)(const void *bytes, size_t size, void *data);  /* non-zero ends the call */
typedef ssize_t (*cay_source)(void *buffer, size_t size, void *data); /* 0: end; -1: abort */

/* A file channel: a worker inside the sandbox, as `user` (NULL: the sandbox's default user). Calls
 * take as long as its work does; one that gives no sign of life for a minute, in which the sandbox
 * is not paused, is given up (UNAVAILABLE), and the channel with it. */
CAY_API int cay_fs_open(struct cay_sandbox *sandbox, const char *user, struct cay_fs **out,
                        struct cay_error *err);
CAY_API void cay_fs_close(struct cay_fs *fs);

CAY_API int cay_fs_read(struct cay_fs *fs, const char *path, uint64_t offset, uint64_t size,
                        cay_sink sink, void *data, struct cay_error *err);
/* With a mode: it is meant as it is, also when no bit of it is set. Without it, 0 is "not given":
 * 644, or what the file had. */
#define CAY_MODE_GIVEN 0100000u
/* Written to a new file beside it and renamed: readers see the old or the new. Parents are made. */
CAY_API int cay_fs_write(struct cay_fs *fs, const char *path, uint32_t mode, cay_source source,
                         void *data, struct cay_error *err);
CAY_API int cay_fs_stat(struct cay_fs *fs, const char *path, bool follow,
                        int (*each)(const struct cay_stat *st, void *data), void *data,
                        struct cay_error *err);
CAY_API int cay_fs_list(struct cay_fs *fs, const char *path, uint32_t depth,
                        int (*each)(const struct cay_stat *st, void *data), void *data,
                        struct cay_error *err);
CAY_API int cay_fs_mkdir(struct cay_fs *fs, const char *path, uint32_t mode, struct cay_error *err);
CAY_API int cay_fs_move(struct cay_fs *fs, const char *from, const char *to, struct cay_error *err);
CAY_API int cay_fs_remove(struct cay_fs *fs, const char *path, bool recursive,
                          struct cay_error *err);
/* glob: shell pattern on the base name, or on the whole relative path if it has a slash. */
CAY_API int cay_fs_find(struct cay_fs *fs, const char *path, const char *glob, uint64_t limit,
                        int (*each)(const struct cay_stat *st, void *data), void *data,
                        struct cay_error *err);
/* pattern: POSIX extended regular expression, or with `literal` the bytes themselves. */
CAY_API int cay_fs_grep(struct cay_fs *fs, const char *path, const char *pattern, bool literal,
                        bool ignore_case, const char *glob, uint64_t limit,
                        int (*each)(const struct cay_match *match, void *data), void *data,
                        struct cay_error *err);
CAY_API int cay_fs_watch(struct cay_fs *fs, const char *path, bool recursive,
                         int (*each)(const struct cay_change *change, void *data), void *data,
                         struct cay_error *err);
/* tar: pax/ustar. Names inside are relative to `path`; tar_in never writes outside of it. */
CAY_API int cay_fs_tar_out(struct cay_fs *fs, const char *path, cay_sink sink, void *data,
                           struct cay_error *err);
CAY_API int cay_fs_tar_in(struct cay_fs *fs, const char *path, cay_source source, void *data,
                          struct cay_error *err);

/* ---- the host -------------------------------------------------------------------------------- */

/* One thing that this host can or cannot do, and what that costs. */
struct cay_check {
    const char *name;
    int level; /* 0 fine, 1 works with a loss, 2 does not work */
    const char *finding;
    const char *advice; /* "" when there is nothing to do */
};

CAY_API int cay_doctor(struct cay *cay, int (*each)(const struct cay_check *check, void *data),
                       void *data, struct cay_error *err);

#ifdef __cplusplus
}
#endif

#endif
