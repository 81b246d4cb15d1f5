/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: one for each sandbox, the only truth about it. It is single-threaded; everything
 * happens in callbacks of its one loop.
 *
 *   setup.c   from a spec to a running jail, and back to nothing
 *   bind.c    a prepared sandbox gets its name
 *   life.c    states, timers, the end
 *   link.c    the wire to init
 *   proc.c    processes: start, exit, kill
 *   group.c   their cgroups
 *   oom.c     the one that ran out of memory
 *   watch.c   whether the sandbox takes what no control group counts:
 *   counter.c  the process that is asked,
 *   budget.c  how much is too much, and
 *   holdings.c  how much it is
 *   lease.c   starts that can be repeated, and the end of what nobody stays with
 *   why.c     why they did not end by themselves
 *   stdio.c   what goes into and comes out of them
 *   spool.c   output kept for readers now and later
 *   flow.c    whoever follows a process holds it back; what is kept has a budget
 *   client.c  callers: connections and streams
 *   ops.c     what callers can ask for
 *   rights.c  what it gives up, and when
 */
#ifndef CAY_KEEPER_KEEPER_H
#define CAY_KEEPER_KEEPER_H

#include "base/loop.h"
#include "jail/jail.h"
#include "keeper/spool.h"
#include "sandbox/home.h"
#include "sandbox/spec.h"
#include "wire/chan.h"

struct keeper;
struct client;

/* A process that a caller started. Ended ones are kept for their exit code and output. */
enum proc_state {
    PROC_STARTING, /* init was asked */
    PROC_RUNNING,
    PROC_ENDED,
};

struct pipe_end {
    struct watch watch;
    struct proc *proc;
    int fd;     /* -1: closed */
    int stream; /* 1, 2; the master of a terminal is 1 */
};

struct group {
    uint32_t number;    /* names it */
    int tasks;          /* hybrid: see cgroup_exec_tasks; -1 on v2 */
    uint64_t oom_kills; /* that were there when last looked */
    bool killed;        /* as a whole: not to be used again */
};

struct proc {
    struct keeper *keeper;
    struct proc *next;
    enum proc_state state;
    pid_t pid;                        /* as the sandbox counts; 0 while starting */
    uint32_t tag;                     /* of the INIT_SPAWN */
    bool pty, timed_out, oom, killed; /* killed: by its timer */
    bool last;                        /* the sandbox ends with it */
    bool grouped;                     /* has a cgroup of its own: */
    struct group group;
    bool lingering;   /* ended, but its cgroup still has processes */
    bool stopped;     /* its output is not read: a follower lags, or too much comes for nobody */
    uint64_t awaited; /* hold: the offset at which somebody is expected; UINT64_MAX: nobody */
    struct timer hold;
    struct pipe_end out, err;
    struct watch in_watch;
    int in; /* write end of its standard input, or the terminal's master (not owned); -1: closed */
    struct cay_buf in_buf;
    bool in_eof;
    struct spool spool;
    struct timer timeout;
    struct client *starter; /* waits for STARTED */
    uint64_t started_us, started_ms, ended_us, deadline_us;
    int exit_code, signal;
    char oom_text[96];
    bool oom_counted; /* all of it is killed at once: the kernel may count each process */
    uint64_t cpu_us, peak_memory;
    char command[256];
    const char *why; /* it did not end by itself; NULL: it did, or runs */
    /* lease.c */
    char key[CAY_MAX_KEY]; /* empty: none */
    unsigned __int128 fingerprint;
    uint64_t lease_us, lease_left_us; /* left: when the sandbox was paused */
    bool lease_alone;                 /* nobody stayed with it when it was looked at */
    struct timer lease_timer;
    uint64_t in_next; /* offset behind the input that was taken with one */
};

enum client_mode {
    CLIENT_IDLE,     /* the next request may come */
    CLIENT_STARTING, /* EXEC: init was asked */
    CLIENT_STREAM,   /* OUTPUT frames until the end of the process */
    CLIENT_WAIT,     /* WAIT: answers when the process ends or time is up */
    CLIENT_CHANNEL,  /* FS: init was asked */
    CLIENT_STOP,     /* STOP: answers when all is gone */
    CLIENT_GONE,     /* it hung up; to be freed by its own watch */
};

struct client {
    struct keeper *keeper;
    struct client *next;
    struct watch watch;
    struct chan chan;
    enum client_mode mode;
    bool creator, detach, follow, held;
    bool spare;         /* beyond CAY_MAX_CLIENTS: for one short request */
    bool again;         /* its last message is to be handled again when it is not held any more */
    bool gap;           /* STREAM: bytes that it asked for were dropped before it got them */
    bool fresh;         /* STREAM: it began with the oldest that is kept, and got nothing yet */
    bool aloof;         /* WAIT: holds no lease */
    struct proc *proc;  /* STREAM, WAIT, and STARTING of a known key; NULL in STREAM: the log */
    struct proc *feeds; /* held: until this one has taken its input */
    uint64_t offset;    /* STREAM: next byte to send */
    uint64_t until;     /* STREAM: EXIT comes here; UINT64_MAX while the process runs */
    uint64_t missing;   /* STREAM: the code of why, to be told with what comes next */
    uint64_t stall_ms;  /* STREAM: it may take nothing, and hold the process back, for this long */
    uint64_t progress_us; /* STREAM: when it last took something */
    uint64_t piece;       /* STREAM: bytes of one frame at most; 0: CAY_MAX_DATA */
    uint32_t tag;         /* of the request that is being answered */
    uint32_t channel_tag; /* CHANNEL: of the INIT_FS */
    int channel;          /* CHANNEL: the caller's end */
    struct timer timer;
    struct cay_buf out; /* encoded, not yet sent */
};

enum phase {
    PHASE_UP,       /* running or paused */
    PHASE_STOPPING, /* processes were asked to end; killed when the grace is over */
    PHASE_KILLING,  /* everything was killed; waiting for the kernel */
    PHASE_OVER,     /* all is gone; callers still take what is theirs */
};

/* watch.c */
struct watcher {
    struct timer timer;
    struct watch answer; /* of the counter; -1: there is none any more */
    pid_t pid;
    bool asked, counting; /* counting: the last answer was not the last of its count */
    uint64_t cpu_us;
    uint64_t due_us; /* the look that a pause put off; 0: none */
};

struct keeper {
    struct loop loop;
    struct cay cay;
    struct spec spec;
    const char
        *id;       /* what it is called: the program's argument, or the spec's if it was prepared */
    char *program; /* argv[0]: children that do not execute anything are renamed there */
    char image[CAY_MAX_PATH]; /* what the spec's image stands for */
    int image_dir; /* the directory of that, as the creator opened it; until all mounts are made */

    /* what the sandbox is made of */
    struct cgroup cgroup;
    struct jail jail;
    uint64_t id_range; /* 1 + number; 0: none */
    int run_dir;       /* <run>/<id> */
    int spools;        /* <state>/spools: unnamed files of output */
    bool no_setid;     /* nothing inside may become set-uid or set-gid: see sandbox/mounts.h */
    int disk;          /* detached mount or -1 */

    /*
     * A prepared sandbox is parked until its creator says what it is to be (bind.c). Cgroup and ids
     * are named after its instance, whose status file stays locked as long as they are there.
     */
    bool parked;
    const char *instance; /* NULL: it was not prepared, or is still called that */
    int instance_fd;

    /* state */
    int status_fd;
    enum cay_state state;
    const char *reason;
    const char *why; /* what processes are told of its end, if not the reason */
    char reason_text[160];
    enum phase phase;
    bool remove;     /* leave no record */
    bool unkillable; /* something in its cgroup does not die */
    char boot_id[40];
    uint64_t paused_us; /* when it was paused */
    uint64_t created_ms, ended_ms, status_us, ttl_deadline_us, idle_us, last_use_us, meminfo_us;
    uint64_t oom_seen, oom_kills; /* of init and its workers, at first; commands since then */
    int oom_looks;
    uint32_t running, next_tag, next_group;
    struct group spare[CAY_MAX_SPARE_GROUPS]; /* empty ones */
    size_t n_spare;
    struct timer ttl_timer, idle_timer, status_timer, grace_timer, retry_timer, listen_timer,
        link_timer;
    struct timer oom_timer, home_timer;
    int retries;
    struct watcher watcher;

    struct chan init;
    int link_errors; /* in a row, of reading from it */
    struct watch init_watch, pidfd_watch, oom_watch, listen_watch;
    int oom_fd, listen_fd;

    struct proc *procs; /* oldest first */
    size_t n_ended;
    uint64_t *spent; /* of the keys of processes that are forgotten: CAY_MAX_SPENT, in a ring */
    size_t next_spent;
    struct client *clients, *creator; /* creator: only good until the loop runs */
    size_t n_clients;
    struct cay_buf scratch; /* a message on its way out */
    struct spool log;
    uint64_t kept;    /* bytes in the spools of all processes and in the log */
    size_t switches;  /* memory that these take for where the stream changes */
    bool log_stopped; /* a follower of the log lags: no process's output is read */
    size_t n_stopped; /* processes whose output is not read */
    /* Output that nobody follows is read at a rate: */
    int64_t alone_left; /* bytes that may be read before the clock is looked at */
    uint64_t alone_us;  /* when that was done last */
    bool alone_spent;   /* none of it is read until the timer says so */
    struct timer alone_timer;
};

/* setup.c */
int keeper_setup(struct keeper *k, struct cay_error *err);
/* Makes a parked jail into one of this spec. One that fails is of no use any more. */
int keeper_bind(struct keeper *k, const struct cay_spec *spec, struct cay_error *err);
void keeper_undo(struct keeper *k); /* cgroup, id range, run directory */

/* bind.c */
void bind_handle(struct client *client, const struct msg *msg);

/* link.c */
int link_send(struct keeper *k, const struct msg *msg, const int *fds, size_t n,
              struct cay_error *err);
void link_start(struct keeper *k, int sock); /* borrowed: jail.sock owns it once the jail is up */
/* Waits for init's first frame. If it does not come, init is dead and reaped. */
int link_await(struct keeper *k, struct cay_error *err);
void link_resume(struct keeper *k); /* what came along with that frame is handled */

/* proc.c */
int proc_start(struct keeper *k, const struct msg *request, struct client *client,
               struct cay_error *err);
void proc_started(struct proc *proc, pid_t pid, int master);
void proc_failed(struct proc *proc, const struct cay_error *why);
void proc_exited(struct proc *proc, int status, uint64_t cpu_us, uint64_t peak);
/* What is left when the sandbox ends without init having said how. */
void proc_abandoned(struct proc *proc);
struct proc *proc_find(struct keeper *k, pid_t pid);
struct proc *proc_of_tag(struct keeper *k, uint32_t tag);
void proc_kill_tree(struct proc *proc, int signal);
void proc_resumed(struct proc *proc, uint64_t paused_us);
void proc_warm(struct keeper *k);      /* parked: the first start will be as fast as a second one */
bool proc_any(const struct keeper *k); /* a command runs, or has left something behind */
void proc_sweep(struct keeper *k);     /* gives empty cgroups of ended ones back */
void proc_free(struct proc *proc);

/* lease.c */
/* Is it a start that can be made, or found? */
int lease_check(struct keeper *k, const struct msg *request, struct cay_error *err);
void lease_init(struct proc *proc, const struct msg *request);
struct proc *lease_find(struct keeper *k, const char *key);
/* An EXEC whose key is known: the client gets that process, and nothing is started. */
void lease_join(struct client *client, struct proc *proc, const struct msg *request);
void lease_started(struct proc *proc);
void lease_failed(struct proc *proc, const struct cay_error *why);
void lease_let_go(struct client *client); /* before it has no process any more */
void lease_set(struct proc *proc, uint64_t ms);
void lease_pause(struct keeper *k, bool paused);
void lease_done(struct proc *proc);
void lease_forget(struct proc *proc); /* its record goes; that its key was used does not */

/* why.c */
#define WHY_TIMEOUT "timed out"
#define WHY_OOM "out of memory"
#define WHY_LEASE "its client went away"
#define WHY_KILLED "killed on request"
#define WHY_REMOVED "the sandbox was removed"
#define WHY_BOX_KILLED "the sandbox was killed"
#define WHY_STOPPED "the sandbox was stopped"
void why_set(struct proc *proc, const char *text); /* before it is killed; static text */
void why_ended(struct proc *proc);                 /* its exit is known */
/* group.c */
void group_name(const struct group *group, char out[16]);
void group_prepare(struct keeper *k); /* makes the next one ahead of time */
int group_take(struct proc *proc, struct cay_error *err);
/* False while there are processes in it; `dying`: what is in it is just about to end. */
bool group_give(struct proc *proc, bool dying);
void group_drop(struct proc *proc); /* for good */

/* oom.c */
void oom_watch(struct keeper *k);
bool oom_took_init(struct keeper *k); /* init is dead: was it that? */
void oom_mark(struct proc *proc);     /* if its group was hit: all of it dies */
void oom_exited(struct proc *proc);   /* init said how; this may know better */

/* watch.c */
int watch_counter(struct keeper *k); /* starts it, before the rights to that are given up */
void watch_start(struct keeper *k);  /* something runs */
void watch_stop(struct keeper *k);   /* nothing will, until watch_start */

/* stdio.c */
void stdio_init(struct proc *proc);
int stdio_pipes(struct proc *proc, bool want_stdin, int theirs[3]);
void stdio_start(struct proc *proc, int master); /* it runs: output is read from now on */
/* Is there room for more? Senders are held back while there is none. */
bool stdio_room(const struct proc *proc);
int stdio_input(struct proc *proc, const char *bytes, size_t size, bool eof);
void stdio_watch(struct proc *proc); /* reads its output or, if it is `stopped`, leaves it alone */
void stdio_end(struct proc *proc);   /* it ended: reads the rest; children may still write */
void stdio_done(struct proc *proc);  /* closes everything */

/* flow.c */
/* Starts and stops the reading of a process's output (NULL: of all) as its followers need. */
void flow_check(struct keeper *k, struct proc *proc);
/* The first byte that a follower still needs; NULL: of the log. */
uint64_t flow_floor(const struct keeper *k, const struct proc *proc);
/* Stores output in the process's spool and in the log, within the budget of the sandbox. */
void flow_store(struct proc *proc, int stream, const char *bytes, size_t size);
/* The process is held back as if somebody followed it from `offset`, until somebody does, or for a
 * while. */
void flow_await(struct proc *proc, uint64_t offset, uint64_t ms);
void flow_met(struct proc *proc);    /* somebody does */
void flow_forget(struct proc *proc); /* its spool goes */
/* The time in which the sandbox was paused counts against nobody. */
void flow_resumed(struct keeper *k, uint64_t paused_us);

/* client.c */
int client_listen(struct keeper *k, struct cay_error *err);
/* Takes the channel over, with what was read from it already: client_serve handles that. */
struct client *client_new(struct keeper *k, struct chan *chan, bool creator);
void client_serve(struct client *client);
void client_free(struct client *client);
void client_send(struct client *client, const struct msg *msg, int fd);
void client_fail(struct client *client, const struct cay_error *why);
void client_crowded(struct client *client); /* there are too many */
/* Turns the connection into a stream of a process (NULL: of the log) from `offset` on. */
void client_stream(struct client *client, struct proc *proc, uint64_t offset, bool follow);
void client_leave(struct client *client); /* out of STREAM or WAIT: the next request may come */
void client_pump(struct client *client);  /* a stream has more to send, or its process ended */
void clients_of(struct keeper *k,
                struct proc *proc);        /* pumps all streams of a process; NULL: of the log */
void client_resume(struct client *client); /* reading was held back; go on */
void clients_over(struct keeper *k);       /* stops the loop once callers have what is theirs */
void client_exit(struct client *client, const struct proc *proc);

/* ops.c */
void ops_handle(struct client *client, const struct msg *msg);

/* life.c */
void life_watch(struct keeper *k); /* from here on its end is noticed */
void life_up(struct keeper *k);
void life_use(struct keeper *k); /* somebody called: it is not idle */
void life_dirty(struct keeper *k);
int life_write(struct keeper *k);
void life_end(struct keeper *k, enum cay_state state, const char *reason, uint64_t grace_ms);
void life_last(
    struct keeper *k); /* the command that it was made for ended: say so, life_end follows */
void life_check(struct keeper *k); /* a process ended: stopping may be over */
/* Its run directory was removed, and the id is somebody else's now: names are not ours any more. */
bool life_replaced(const struct keeper *k);
int life_pause(struct keeper *k, bool paused, struct cay_error *err);
uint64_t life_clock(const struct keeper *k); /* as cay_now_us, but it stands still while paused */
void life_set_ttl(struct keeper *k, uint64_t ms);
void life_set_idle(struct keeper *k, uint64_t ms);
void life_status(const struct keeper *k, struct cay_buf *out);

#endif
