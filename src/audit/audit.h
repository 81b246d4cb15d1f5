/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The audit log: one append-only journal of who did what, chained by hashes. The audit and the
 * lifecycle events of the API are both read from it. docs/AUDIT.md describes the files and the
 * lines for people and for other programs.
 *
 *   - One writer for each directory (it holds a lock on it); any number of readers, in this process
 *     or in others. Readers need no lock.
 *   - audit_append is called by one thread only, the loop of the daemon. audit_sync, audit_query,
 *     audit_verify and audit_follow may run in other threads at the same time.
 *   - seq only grows, whatever the wall clock does; that is the order of the log.
 *   - Nothing secret goes in: there is no member for contents, environment values or input, and
 *     what callers choose is bounded.
 *   - index.sqlite is derived from the journal and may be deleted at any time.
 */
#ifndef CAY_AUDIT_AUDIT_H
#define CAY_AUDIT_AUDIT_H

#include "base/buf.h"

#include <cay/cay.h>

/* Size at which the current file is put aside. */
#define AUDIT_ROTATE_BYTES (64u << 20)
/* One line: all labels of a sandbox, argv, two paths, each byte escaped in six. */
#define AUDIT_MAX_LINE (512u << 10)
/* argv, and names of variables: entries and bytes of a list. */
#define AUDIT_MAX_ARGS 64
#define AUDIT_MAX_ARG_BYTES 4096
/* A path; any other text of a line. */
#define AUDIT_MAX_PATH 4096
#define AUDIT_MAX_TEXT 512
/* A hash in hex, with its NUL. */
#define AUDIT_HASH 65

/* What was done, as lines name it, and the lifecycle event that it is when it went well. */
#define AUDIT_ACTION_TABLE(X)                                                     \
    X(CREATE, "create", "created")                                                \
    X(EXEC, "exec", NULL)                                                         \
    X(START, "start", NULL)                                                       \
    X(WRITE, "write", NULL)                                                       \
    X(REMOVE, "remove", NULL)                                                     \
    X(MKDIR, "mkdir", NULL)                                                       \
    X(MOVE, "move", NULL)                                                         \
    X(ARCHIVE, "archive", NULL)                                                   \
    X(SIGNAL, "signal", NULL)                                                     \
    X(STDIN, "stdin", NULL)                                                       \
    X(PAUSE, "pause", "paused")                                                   \
    X(RESUME, "resume", "resumed")                                                \
    X(STOP, "stop", NULL)                                                         \
    X(KILL, "kill", NULL)                                                         \
    X(DELETE, "delete", "removed")                                                \
    X(PATCH, "patch", NULL)                                                       \
    X(REFUSED, "refused", NULL)                                                   \
    X(ENDED, "ended", "ended")                                                    \
    X(STARTED, "started", NULL) /* the daemon */                                  \
    X(STOPPED, "stopped", NULL) /* the daemon */                                  \
    X(RELOAD, "reload", NULL)                                                     \
    X(RECOVERED, "recovered", NULL) /* the log itself, after a crash or a loss */ \
    X(PRUNED, "pruned", NULL)       /* the log itself: old files beyond the number kept */

enum audit_action {
#define CAY_X(sym, name, event) AUDIT_##sym,
    AUDIT_ACTION_TABLE(CAY_X)
#undef CAY_X
};

/* "exec"; never NULL. */
const char *audit_action_name(enum audit_action action);
/* True if some action is called so. */
bool audit_action_known(const char *name);

/* For optional numbers: .pid = AUDIT_NUMBER(12). Lives until the end of the enclosing block. */
#define AUDIT_NUMBER(value) (&(uint64_t){(uint64_t)(value)})

/* Everything is borrowed and optional. There is no member for what must not be in a log. */
struct audit_detail {
    const char *const *argv; /* NULL-terminated */
    const char *const *env;  /* NULL-terminated; of "K=V" only K is written */
    const char *path, *to;   /* of a move: from path */
    const char *image, *user;
    const char *rule;           /* that refused */
    const char *state, *reason; /* of a sandbox; of a daemon's end */
    const char *peer;           /* where the request came from: "unix:uid=0", "10.0.0.1:41222" */
    const uint64_t *bytes, *pid, *signal, *exit_code, *ttl_ms, *idle_ms, *from, *to_seq;
    bool existed; /* it changed nothing, as another had done it before: no lifecycle event */
};

struct audit_entry {
    const char *who;    /* name of a token, "operator" or "engine" */
    const char *tenant; /* NULL: none */
    enum audit_action action;
    const char *sandbox;       /* in full ("acme~box"), NULL: none */
    const char *const *labels; /* "K=V", NULL-terminated; NULL: none */
    enum cay_code result;      /* CAY_OK, or why not */
    struct audit_detail detail;
};

/* ---- writing --------------------------------------------------------------------------------- */

struct audit;

struct audit_options {
    uint64_t rotate_bytes;     /* 0: AUDIT_ROTATE_BYTES */
    uint32_t keep;             /* rotated files to keep; 0: all */
    uint64_t (*wall_us)(void); /* NULL: the real-time clock. For tests of its jumps. */
};

/*
 * Opens the journal in `dir` (made with mode 0700 if missing), mends what a crash left and
 * continues its chain. CONFLICT: another process writes there. `options` may be NULL.
 */
int audit_open(const char *dir, const struct audit_options *options, struct audit **out,
               struct cay_error *err);
/* The last entry, and when the one was written that was the last when the journal was opened (wall
 * clock; 0: there was none). For the thread that appends. */
uint64_t audit_last(const struct audit *audit, uint64_t *before_ms);
/* Syncs and closes. NULL is fine. */
void audit_close(struct audit *audit);

struct audit_added {
    uint64_t seq;
    const char *line; /* without newline; borrowed until the next append */
    size_t size;
    bool rotated;    /* a new file was begun; older ones go with the next entry */
    uint64_t before; /* the last entry before the call */
};

/*
 * Some room behind the current file is taken from the disk ahead. When the disk is full, that is
 * for what makes room, for what ends and for what the engine says of itself; the rest is refused
 * before it is done. NO_SPACE if there is no room for an entry, `removes`: for one of a removal.
 */
int audit_room(struct audit *audit, bool removes, struct cay_error *err);

/*
 * One write(2), no fsync. When it fails (NO_SPACE) nothing was added and the chain is as before:
 * the next one that succeeds continues it. `added` may be NULL.
 */
int audit_append(struct audit *audit, const struct audit_entry *entry, struct audit_added *added,
                 struct cay_error *err);
/* Brings to disk what was appended before the call, and then notes it in `head`. */
int audit_sync(struct audit *audit, struct cay_error *err);

/* ---- reading --------------------------------------------------------------------------------- */

struct audit_query {
    uint64_t since_ms, until_ms; /* wall clock, both included; 0: open */
    const char *sandbox;
    const char *tenant; /* NULL: any; "": entries without one */
    const char *label;  /* "K=V", or "K" for any value */
    const char *action;
    uint64_t after_seq;
    uint64_t limit;      /* 0: none */
    bool last;           /* with a limit (AUDIT_MAX_LAST at most): the last ones; still in order */
    bool lifecycle_only; /* what audit_event takes */
    bool no_index;       /* read the journal itself */
};

#define AUDIT_MAX_LAST 100000

/* A line without its newline. Anything but 0 ends the query, which then succeeds. */
typedef int audit_each(const char *line, size_t size, void *data);

/* Calls `each` in the order of the log. NOT_FOUND: there is no log in `dir`. */
int audit_query(const char *dir, const struct audit_query *query, audit_each *each, void *data,
                struct cay_error *err);

/* Waits for new entries: poll the descriptor, then read what came. */
struct audit_follow;
int audit_follow_open(const char *dir, uint64_t after_seq, struct audit_follow **out,
                      struct cay_error *err);
int audit_follow_fd(const struct audit_follow *follow);
/* Everything that matches and is new since the last call. Limits of the query are not looked at. */
int audit_follow_read(struct audit_follow *follow, const struct audit_query *query,
                      audit_each *each, void *data, struct cay_error *err);
void audit_follow_close(struct audit_follow *follow);

/*
 * Adds a line's lifecycle event as JSON: {"seq","time_ms","type","sandbox","state","reason",
 * "labels"}. With a tenant: only if it is one of its own, and the id is without the prefix. 1, or 0
 * if the line is none.
 */
int audit_event(const char *line, size_t size, const char *tenant, struct cay_buf *out);

/* "2026-11-15T22:33:44.5Z", "2026-11-15T23:33:44+01:00": milliseconds since 1970. */
int audit_time_parse(const char *text, uint64_t *ms, struct cay_error *err);

/* ---- verifying ------------------------------------------------------------------------------- */

enum audit_fault {
    AUDIT_NOTE,          /* worth a line, but nothing is wrong */
    AUDIT_FAULT_CHANGED, /* a line is not what was written */
    AUDIT_FAULT_LINK,    /* a line does not follow the one before it */
    AUDIT_FAULT_GAP,     /* entries are missing */
    AUDIT_FAULT_ORDER,   /* an entry is not where it belongs */
    AUDIT_FAULT_FILE,    /* a file cannot be read, or is not what its name says */
    AUDIT_FAULT_HEAD,    /* the end was cut off, or `head` is damaged */
};

const char *audit_fault_name(enum audit_fault fault);

struct audit_finding {
    enum audit_fault fault;
    const char *file; /* its name; never NULL */
    uint64_t line;    /* from 1; 0: the file as a whole */
    uint64_t seq;     /* 0: unknown */
    const char *text; /* one line */
};

struct audit_summary {
    uint64_t entries, first_seq, last_seq, faults;
    char hash[AUDIT_HASH]; /* of the last entry */
};

typedef void audit_report(const struct audit_finding *finding, void *data);

/* Walks the whole log. Findings come in its order; the return value says only whether it could be
 * read. */
int audit_verify(const char *dir, audit_report *report, void *data, struct audit_summary *out,
                 struct cay_error *err);

#endif
