/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay-init: PID 1 inside a sandbox. It forks what the keeper asks for, reaps everything, and is
 * otherwise asleep in poll(). It runs from a sealed memfd, holds nothing but its socket to the
 * keeper (fd 3) and a descriptor of its cgroup (fd 4), and its death ends the sandbox.
 *
 * Everything that can fail, block or be fooled by what the sandbox wrote (passwd lookup, chdir,
 * exec, file operations) happens in forked children; init itself learns of it through a pipe. So no
 * file of the sandbox can stop PID 1.
 */
#ifndef CAY_INIT_INIT_H
#define CAY_INIT_INIT_H

#include "wire/chan.h"

#include <stdbool.h>
#include <sys/resource.h>

#define INIT_KEEPER_FD 3
#define INIT_CGROUP_FD 4

enum proc_kind {
    PROC_COMMAND, /* from INIT_SPAWN */
    PROC_WORKER,  /* from INIT_FS */
};

/* What init remembers of a child until it has been reaped and told of. */
struct proc {
    struct proc *next;
    enum proc_kind kind;
    uint32_t tag; /* of the request, for its answer */
    pid_t child;  /* init's own child: the command, the worker or the warden */
    pid_t pid; /* the command; 0 until the warden has said it. Without a warden the same as child */
    bool warden;   /* the command runs below a warden (MSG_F_SUBREAPER) */
    bool answered; /* SPAWNED, OK or ERROR was sent */
    bool dead;     /* EXITED was sent or is not owed; only a warden may still be there */
    int status;    /* pipe: a cay_error if it could not start, end of file once it
                    * has; -1 afterwards */
    int report;    /* pipe from the warden: struct warden_report; -1 if none */
    int master;    /* terminal, until it is handed over; -1 if none */
};

struct init {
    struct chan keeper;
    int cgroup;  /* -1: none */
    int signals; /* signalfd */
    struct proc *procs;
    struct waiting *waiting; /* messages that the socket has no room for yet */
    size_t waiting_size;
    bool named; /* its host name is in /etc/hosts, or cannot be */
};

/* send.c: what init says; a keeper that is gone ends init. Descriptors are borrowed;
 * one at most. */
void init_send(struct init *init, const struct msg *msg, const int *fds, size_t n_fds);
void init_send_ok(struct init *init, uint32_t tag);
void init_send_error(struct init *init, uint32_t tag, const struct cay_error *err);
/* Sends what waits, as far as the socket takes it. */
void init_flush(struct init *init);
/* Whether new requests may be taken: not while too many answers wait. */
bool init_may_read(const struct init *init);

/* proc.c: the list of children, and what happens to them. */
struct proc *proc_new(struct init *init, enum proc_kind kind, uint32_t tag, struct cay_error *err);
void proc_free(struct init *init, struct proc *proc);
/* Reads the pipes of all children that have news. */
void proc_progress(struct init *init);
/* Reaps every child that has ended, ours or inherited. */
void proc_reap(struct init *init);
int proc_signal(struct init *init, const struct msg *msg, struct cay_error *err);

/* hosts.c: before the first process. */
void init_name_host(struct init *init);

/* spawn.c: the parent's side of a start. 0: it is under way and will be answered;
 * -1: answer err. */
int spawn_command(struct init *init, const struct msg *msg, struct cay_error *err);
int spawn_worker(struct init *init, const struct msg *msg, struct cay_error *err);

/* child.c: the child's side; these do not return. `status` takes a cay_error. */
struct child {
    const struct msg *msg;
    int stdio[3]; /* -1 with a terminal */
    int tasks;    /* of its v1 memory group; -1 if it was born in it, or there is none */
    int master;   /* -1 without one */
    int status;
};
_Noreturn void child_run(const struct child *child);
/* Tells init why it could not start, and ends. */
_Noreturn void child_fail(int status, const struct cay_error *err);
/* What every child does first: no descriptor but stdio and `keep`, which becomes 3, which is
 * returned. */
int child_cut_off(int keep);
int child_close_from(int first);
void child_before_init(int more); /* out of memory, this one goes before init */
void child_unblock_signals(void);

/* warden.c: a process that keeps the command's whole tree below itself (hosts without cgroups). */
struct warden_report {
    pid_t pid;
    int ended; /* 0: pid was started; 1: it has ended, with what follows */
    int status;
    uint64_t cpu_us, peak_memory;
};
_Noreturn void warden_run(const struct child *child, int report);
void rusage_to_report(const struct rusage *usage, struct warden_report *out);

/* tree.c: signals everything below `top`, and top itself if so asked. */
int tree_signal(pid_t top, bool with_top, int signal, struct cay_error *err);
/* Kills everything that is below no child of ours that we know. */
int tree_kill_strays(const struct init *init, struct cay_error *err);

/* worker.c: serves file requests on `sock` until its peer hangs up. */
_Noreturn void worker_run(const struct msg *msg, int sock, int status);

#endif
