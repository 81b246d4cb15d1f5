/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What callers can ask for: one table, one small handler each.
 */
#include "base/err.h"
#include "base/sock.h"
#include "base/util.h"
#include "jail/sys.h"
#include "keeper/keeper.h"
#include "wire/version.h"

#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <termios.h>

static void send_ok(struct client *client)
{
    client_send(client, &(struct msg){.type = MSG_OK, .tag = client->tag}, -1);
}

static void refuse(struct client *client, enum cay_code code, const char *text)
{
    struct cay_error err;
    cay_fail(&err, code, "%s", text);
    client_fail(client, &err);
}

/* `quiet`: nobody is told that there is none, as on a stream, which has no answers. */
static struct proc *named_proc(struct client *client, const struct msg *msg, bool quiet)
{
    struct cay_error err;
    struct proc *proc = msg->pid <= INT32_MAX ? proc_find(client->keeper, (pid_t)msg->pid) : NULL;
    if (!proc && !quiet) {
        cay_fail(&err, CAY_E_NOT_FOUND,
                 "no process %llu in sandbox '%s'; 'cay procs %s' lists them",
                 (unsigned long long)msg->pid, client->keeper->id, client->keeper->id);
        client_fail(client, &err);
    }
    return proc;
}

static struct proc *known_proc(struct client *client, const struct msg *msg)
{
    return named_proc(client, msg, false);
}

/* Used cpu and memory inside are told by /proc/meminfo; refreshed when something starts, not more
 * often than anybody could notice. */
static void refresh_meminfo(struct keeper *k)
{
    char text[1024];
    uint64_t now = cay_now_us();
    if (k->jail.meminfo < 0 || now - k->meminfo_us < 100000)
        return;
    k->meminfo_us = now;
    int n = jail_meminfo(text, sizeof(text), k->spec.spec.memory, cgroup_memory(&k->cgroup));
    if (n > 0)
        (void)!pwrite(k->jail.meminfo, text, (size_t)n, 0);
}

static uint64_t stall_limit(const struct msg *msg)
{
    return !msg->idle_ms                     ? CAY_STALL_MS
           : msg->idle_ms > CAY_MAX_STALL_MS ? UINT64_MAX
                                             : msg->idle_ms;
}

enum needs {
    NEEDS_NOTHING = 0,
    NEEDS_UP = 1 << 0,      /* not while it ends */
    NEEDS_RUNNING = 1 << 1, /* nor while it is paused: init is frozen */
    NEEDS_IDLE = 1 << 2,    /* one request at a time on a connection */
    NEEDS_PLACE = 1 << 3,   /* not on a spare connection, which must be free again at once */
};

/* What init cannot do while the sandbox ends, or is paused: that is told, and true. */
static bool is_down(struct client *client, unsigned needs)
{
    const struct keeper *k = client->keeper;
    if ((needs & NEEDS_UP) && k->phase != PHASE_UP)
        refuse(client, CAY_E_GONE, "the sandbox is ending");
    else if ((needs & NEEDS_RUNNING) && k->state == CAY_STATE_PAUSED)
        refuse(client, CAY_E_CONFLICT, "the sandbox is paused; 'cay resume' lets it go on");
    else
        return false;
    return true;
}

static void op_exec(struct client *client, const struct msg *msg)
{
    struct cay_error err;
    struct keeper *k = client->keeper;
    bool argv = msg->argv && msg->argv[0];
    if (argv == (msg->shell != NULL)) {
        refuse(client, CAY_E_INVALID, "give a command either as argv or as a shell string");
        return;
    }
    if (lease_check(k, msg, &err) < 0) {
        client_fail(client, &err);
        return;
    }
    client->detach = msg->flags & MSG_F_DETACH;
    client->piece = msg->size;
    client->stall_ms = stall_limit(msg);
    struct proc *known = lease_find(k, msg->name);
    if (known) {
        lease_join(client, known, msg);
        return;
    }
    if (msg->flags & MSG_F_KNOWN) {
        refuse(client, CAY_E_NOT_FOUND, "no process has this key");
        return;
    }
    if (is_down(client, NEEDS_UP | NEEDS_RUNNING))
        return;
    refresh_meminfo(k);
    client->mode = CLIENT_STARTING;
    if (proc_start(k, msg, client, &err) < 0) {
        client->mode = CLIENT_IDLE;
        client_fail(client, &err);
    }
}

static void op_attach(struct client *client, const struct msg *msg)
{
    struct proc *proc = msg->pid ? known_proc(client, msg) : NULL;
    if (msg->pid && !proc)
        return;
    client->piece = msg->size;
    client->stall_ms = stall_limit(msg);
    uint64_t from = proc && (msg->flags & MSG_F_STREAMS)
                        ? spool_find(&proc->spool, msg->number, msg->end)
                        : msg->offset;
    client_stream(client, proc, from, msg->flags & MSG_F_FOLLOW);
    client_pump(client);
    flow_check(client->keeper, proc);
}

/* Why a process cannot be given input; NULL if it can. */
static const char *no_input(const struct proc *proc)
{
    if (proc->state == PROC_ENDED)
        return "the process has ended";
    return proc->in < 0 || proc->in_eof ? "the process has no standard input, or it is closed"
                                        : NULL;
}

/* Input at an offset may be sent again by a client that does not know what has arrived: only what
 * is new. Input without one does not count, so that two can share a terminal. */
static struct wire_bytes unseen_input(const struct proc *proc, const struct msg *msg)
{
    struct wire_bytes data = msg->data;
    if (!data.size || !(msg->flags & MSG_F_AT) || msg->offset >= proc->in_next)
        return data;
    size_t skip = (size_t)CAY_MIN(proc->in_next - msg->offset, data.size);
    return (struct wire_bytes){data.data + skip, data.size - skip};
}

/* What is before it has not come, and would be taken for a repetition if it came later. */
static void refuse_gap(struct client *client, const struct proc *proc, uint64_t offset, bool stream)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_CONFLICT,
             "input at offset %llu cannot be taken: the process was given %llu bytes",
             (unsigned long long)offset, (unsigned long long)proc->in_next);
    client_fail(client, &err);
    if (stream)
        shutdown(client->chan.sock, SHUT_RD);
}

/*
 * The sender is held back while too much waits: this message is taken, and the next one read, when
 * the process has taken some. On a stream connection input has no answer, as it may cross the
 * process's end; what cannot be taken at all ends the connection with an error.
 */
static void op_stdin(struct client *client, const struct msg *msg)
{
    bool stream = client->mode == CLIENT_STREAM;
    struct proc *proc = named_proc(client, msg, stream);
    const char *why = proc ? no_input(proc) : NULL;
    if (!stream && why)
        refuse(client, CAY_E_CONFLICT, why);
    if (!proc || why)
        return;
    if ((msg->flags & MSG_F_AT) && msg->offset > proc->in_next) {
        refuse_gap(client, proc, msg->offset, stream);
        return;
    }
    if (msg->data.size && !stdio_room(proc)) { /* the end of it needs no room */
        client->held = client->again = true;
        client->feeds = proc;
        return;
    }
    struct wire_bytes data = unseen_input(proc, msg);
    uint64_t before = proc->in_next;
    /* Counted first: taking it may let another writer go on, who has the same bytes. */
    if (msg->flags & MSG_F_AT)
        proc->in_next = CAY_MAX(proc->in_next, msg->offset + msg->data.size);
    if (stdio_input(proc, data.data, data.size, msg->flags & MSG_F_EOF) < 0) {
        proc->in_next = before;
        refuse(client, CAY_E_NO_SPACE, "out of memory: input was not taken");
        if (stream)
            shutdown(client->chan.sock, SHUT_RD);
        return;
    }
    if (!stream && client->mode == CLIENT_IDLE && msg->tag)
        send_ok(client);
}

static void op_resize(struct client *client, const struct msg *msg)
{
    bool stream = client->mode == CLIENT_STREAM;
    struct proc *proc = named_proc(client, msg, stream);
    struct winsize size = {.ws_row = (unsigned short)msg->rows,
                           .ws_col = (unsigned short)msg->cols};
    if (!proc)
        return;
    if (proc->pty && proc->out.fd >= 0)
        ioctl(proc->out.fd, TIOCSWINSZ, &size);
    else if (!stream)
        refuse(client, CAY_E_CONFLICT, "the process has no terminal, or has ended");
    if (client->mode == CLIENT_IDLE && msg->tag && proc->pty && proc->out.fd >= 0)
        send_ok(client);
}

static void on_wait_over(struct timer *timer)
{
    struct client *client = container_of(timer, struct client, timer);
    lease_let_go(client);
    client->mode = CLIENT_IDLE;
    client->proc = NULL;
    refuse(client, CAY_E_TIMEOUT, "the process is still running");
}

static void op_wait(struct client *client, const struct msg *msg)
{
    struct proc *proc = known_proc(client, msg);
    if (!proc)
        return;
    if (proc->state == PROC_ENDED) {
        client_exit(client, proc);
        return;
    }
    if (msg->timeout_ms == 0) {
        refuse(client, CAY_E_TIMEOUT, "the process is still running");
        return;
    }
    client->mode = CLIENT_WAIT;
    client->proc = proc;
    client->aloof = msg->flags & MSG_F_ALOOF;
    if (!client->aloof)
        flow_met(proc); /* who waits for its end does not come for its output first */
    client->timer.fire = on_wait_over;
    if (msg->timeout_ms < UINT64_MAX / 2000)
        timer_set(&client->keeper->loop, &client->timer, cay_after_ms(msg->timeout_ms));
}

static void op_signal(struct client *client, const struct msg *msg)
{
    struct cay_error err;
    struct keeper *k = client->keeper;
    struct proc *proc = known_proc(client, msg);
    if (!proc)
        return;
    if (msg->signal < 1 || msg->signal > 64) {
        refuse(client, CAY_E_INVALID, "no such signal");
        return;
    }
    if (msg->signal == SIGKILL)
        why_set(proc, msg->flags & MSG_F_LEFT ? WHY_LEASE : WHY_KILLED);
    if ((msg->flags & MSG_F_TREE) && (proc->state == PROC_RUNNING || proc->lingering)) {
        proc_kill_tree(proc, (int)msg->signal);
    } else if (proc->state == PROC_RUNNING) {
        const struct msg order = {
            .type = INIT_SIGNAL, .tag = ++k->next_tag, .pid = msg->pid, .signal = msg->signal};
        if (link_send(k, &order, NULL, 0, &err) < 0) {
            client_fail(client, &err);
            return;
        }
    }
    send_ok(client);
}

static void op_procs(struct client *client, const struct msg *msg)
{
    (void)msg;
    for (struct proc *p = client->keeper->procs; p; p = p->next) {
        if (p->pid == 0)
            continue; /* it did not start, or not yet */
        const struct msg line = {
            .type = MSG_PROC,
            .tag = client->tag,
            .pid = (uint64_t)p->pid,
            .flags = (p->state == PROC_RUNNING ? MSG_F_RUNNING : 0) | (p->pty ? MSG_F_PTY : 0) |
                     (p->timed_out ? MSG_F_TIMED_OUT : 0) | (p->oom ? MSG_F_OOM : 0) |
                     (p->spool.start ? MSG_F_TRUNCATED : 0),
            .exit_code = (uint64_t)p->exit_code,
            .signal = (uint64_t)p->signal,
            .duration_us = (p->state == PROC_RUNNING ? cay_now_us() : p->ended_us) - p->started_us,
            .cpu_us = p->cpu_us,
            .peak_memory = p->peak_memory,
            .started_ms = p->started_ms,
            .offset = p->spool.start,
            .end = p->spool.end,
            .text = p->command,
            .name = p->why,
        };
        client_send(client, &line, -1);
    }
    send_ok(client);
}

static void op_info(struct client *client, const struct msg *msg)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    (void)msg;
    life_status(client->keeper, &buf);
    client_send(client,
                &(struct msg){.type = MSG_OK, .tag = client->tag, .data = {buf.data, buf.size}},
                -1);
}

static void op_spec(struct client *client, const struct msg *msg)
{
    const struct spec *spec = &client->keeper->spec;
    (void)msg;
    client_send(
        client,
        &(struct msg){.type = MSG_OK, .tag = client->tag, .data = {spec->bytes, spec->size}}, -1);
}

static void op_stats(struct client *client, const struct msg *msg)
{
    struct keeper *k = client->keeper;
    struct cay_stats stats = {0};
    struct statfs fs;
    (void)msg;
    cgroup_stats(&k->cgroup, &stats);
    stats.oom_kills += k->oom_kills;
    if (k->cgroup.kind != CGROUP_NONE) {
        stats.memory_max = k->spec.spec.memory;
        stats.pids_max = k->spec.spec.pids;
    }
    if (k->jail.disk >= 0 && fstatfs(k->jail.disk, &fs) == 0) {
        stats.disk_max = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
        stats.disk = stats.disk_max - (uint64_t)fs.f_bfree * (uint64_t)fs.f_bsize;
        stats.inodes_max = fs.f_files;
        stats.inodes = fs.f_files - fs.f_ffree;
    }
    stats.output = k->kept;
    stats.output_max = spec_kept_output(&k->spec.spec);
    client_send(client,
                &(struct msg){.type = MSG_STATS,
                              .tag = client->tag,
                              .data = {(const char *)&stats, sizeof(stats)}},
                -1);
}

static void op_pause(struct client *client, const struct msg *msg)
{
    struct cay_error err;
    if (life_pause(client->keeper, msg->type == OP_PAUSE, &err) < 0)
        client_fail(client, &err);
    else
        send_ok(client);
}

static void op_stop(struct client *client, const struct msg *msg)
{
    struct keeper *k = client->keeper;
    if (k->phase == PHASE_OVER) {
        send_ok(client);
        return;
    }
    client->mode = CLIENT_STOP;
    k->remove = k->remove || (msg->flags & MSG_F_REMOVE);
    if (k->phase == PHASE_UP)
        k->why = k->remove ? WHY_REMOVED : msg->timeout_ms ? WHY_STOPPED : WHY_BOX_KILLED;
    life_end(k, CAY_STATE_EXITED, msg->timeout_ms ? "stopped" : "killed", msg->timeout_ms);
}

/* Of a process. Its stream may say so itself, as one that lets its process go: no answer then. */
static void set_lease(struct client *client, const struct msg *msg, bool stream)
{
    struct proc *proc = named_proc(client, msg, stream);
    bool fits = msg->ttl_ms <= CAY_MAX_LEASE_MS;
    if (proc && fits)
        lease_set(proc, msg->ttl_ms);
    if (proc && !stream && fits)
        send_ok(client);
    else if (proc && !stream)
        refuse(client, CAY_E_INVALID, "a lease that is too long");
}

static void op_lifetime(struct client *client, const struct msg *msg)
{
    if (msg->ttl_ms > 1ULL << 42 || msg->idle_ms > 1ULL << 42) {
        refuse(client, CAY_E_INVALID, "a lifetime of more than a hundred years");
        return;
    }
    bool stream = client->mode == CLIENT_STREAM && msg->pid;
    if (client->mode != CLIENT_IDLE && !stream) {
        refuse(client, CAY_E_CONFLICT, "this connection is busy with another request");
        return;
    }
    if (msg->pid) {
        set_lease(client, msg, stream);
        return;
    }
    if (msg->flags & MSG_F_SET_TTL)
        life_set_ttl(client->keeper, msg->ttl_ms);
    if (msg->flags & MSG_F_SET_IDLE)
        life_set_idle(client->keeper, msg->idle_ms);
    send_ok(client);
}

static void op_fs(struct client *client, const struct msg *msg)
{
    struct cay_error err;
    struct keeper *k = client->keeper;
    int pair[2];
    if (sock_pair(pair) < 0) {
        cay_fail_errno(&err, errno, "cannot make a file channel");
        client_fail(client, &err);
        return;
    }
    autofd int worker = pair[1];
    const struct msg order = {
        .type = INIT_FS,
        .tag = ++k->next_tag,
        .user = msg->user ? msg->user : k->spec.spec.user,
        .cwd = msg->cwd ? msg->cwd : k->spec.spec.cwd,
    };
    client->channel = pair[0];
    client->channel_tag = order.tag;
    client->mode = CLIENT_CHANNEL;
    if (link_send(k, &order, &worker, 1, &err) < 0) {
        client->mode = CLIENT_IDLE;
        close_fd(&client->channel);
        client_fail(client, &err);
    }
}

static const struct {
    uint16_t type;
    unsigned needs;
    void (*handle)(struct client *client, const struct msg *msg);
} ops[] = {
    {OP_CREATE, NEEDS_UP | NEEDS_IDLE | NEEDS_PLACE, bind_handle},
    {OP_EXEC, NEEDS_IDLE | NEEDS_PLACE, op_exec}, /* a known key needs no more */
    {OP_ATTACH, NEEDS_IDLE | NEEDS_PLACE, op_attach},
    {OP_STDIN, NEEDS_PLACE, op_stdin},
    {OP_RESIZE, NEEDS_PLACE, op_resize},
    {OP_WAIT, NEEDS_IDLE | NEEDS_PLACE, op_wait},
    {OP_SIGNAL, NEEDS_UP | NEEDS_IDLE, op_signal},
    {OP_PROCS, NEEDS_IDLE, op_procs},
    {OP_INFO, NEEDS_IDLE, op_info},
    {OP_SPEC, NEEDS_IDLE, op_spec},
    {OP_STATS, NEEDS_IDLE, op_stats},
    {OP_PAUSE, NEEDS_UP | NEEDS_IDLE, op_pause},
    {OP_RESUME, NEEDS_UP | NEEDS_IDLE, op_pause},
    {OP_STOP, NEEDS_NOTHING, op_stop},
    {OP_LIFETIME, NEEDS_UP, op_lifetime},
    {OP_FS, NEEDS_UP | NEEDS_RUNNING | NEEDS_IDLE | NEEDS_PLACE, op_fs},
};

/* Why a request cannot be handled now is told, and true. */
static bool is_refused(struct client *client, uint16_t type, unsigned needs)
{
    struct keeper *k = client->keeper;
    if ((needs & NEEDS_PLACE) && client->spare) {
        client_crowded(client);
        shutdown(client->chan.sock, SHUT_RD);
    } else if ((needs & NEEDS_IDLE) && client->mode != CLIENT_IDLE) {
        refuse(client, CAY_E_CONFLICT, "this connection is busy with another request");
    } else if (k->parked && type != OP_CREATE) {
        refuse(client, CAY_E_UNAVAILABLE, "the sandbox is only prepared");
    } else {
        return is_down(client, needs);
    }
    return true;
}

void ops_handle(struct client *client, const struct msg *msg)
{
    struct keeper *k = client->keeper;
    life_use(k);
    for (size_t i = 0; i < CAY_COUNT(ops); i++) {
        if (ops[i].type != msg->type)
            continue;
        if (client->mode == CLIENT_IDLE)
            client->tag = msg->tag;
        if (!is_refused(client, msg->type, ops[i].needs))
            ops[i].handle(client, msg);
        return;
    }
    struct cay_error err;
    cay_fail(&err, CAY_E_UNSUPPORTED,
             "the keeper of sandbox '%s' is " WIRE_WHO " and does not know request %u", k->id,
             (unsigned)msg->type);
    client_fail(client, &err);
}
