/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Callers. A client's unsent bytes never exceed one frame or so: streams are pumped from the spool
 * only when the socket has room, and a slow follower holds back its process alone (flow.c). Sending
 * never frees a client; one whose peer is gone is freed by its own watch.
 */
#include "base/err.h"
#include "base/sock.h"
#include "base/util.h"
#include "keeper/keeper.h"
#include "wire/version.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* Answers (lists of processes, mostly) that a caller does not read are cut off here. */
#define MAX_UNSENT (4u << 20)
#define BACKLOG 256
/* Out of descriptors: new callers wait this long. */
#define LOOK_AWAY_US 100000

/* Held back, and not needed to tell that an ephemeral sandbox's creator is gone: what it sent
 * before it hung up must still be read, so its end is not looked at now. */
static bool is_patient(const struct client *client)
{
    return client->held && !(client->creator && client->keeper->spec.spec.ephemeral);
}

static void update_watch(struct client *client)
{
    if (is_patient(client) && !client->out.size) {
        loop_forget(&client->keeper->loop, &client->watch);
        return;
    }
    uint32_t events = (client->held ? 0 : EPOLLIN) | (client->out.size ? EPOLLOUT : 0) | EPOLLRDHUP;
    loop_watch(&client->keeper->loop, &client->watch, client->chan.sock, events);
}

/* An answer that cannot be sent ends the conversation: the caller must not wait for it for ever.
 * Its watch tells us of the hang-up, and frees it. */
static void hang_up(struct client *client)
{
    client->out.size = 0;
    client->out.failed = false;
    if (client->mode == CLIENT_STREAM)
        client->mode = CLIENT_GONE;
    shutdown(client->chan.sock, SHUT_RDWR);
}

static void flush(struct client *client)
{
    while (client->out.size) {
        ssize_t n = sock_send(client->chan.sock, client->out.data, client->out.size, NULL, 0);
        if (n < 0) {
            if (errno != EAGAIN)
                hang_up(client);
            break;
        }
        buf_eat(&client->out, (size_t)n);
        client->progress_us = cay_now_us();
    }
    /* A stream's frames are large, idle connections are many: give the memory back. */
    if (client->out.size == 0 && client->out.capacity > 4096)
        buf_done(&client->out);
    update_watch(client);
}

/* What the socket takes of a message now; the rest waits in `out`. Descriptors travel with the
 * first byte of their frame: on a connection that asks one thing at a time nothing unsent is before
 * it. */
static int send_now(struct client *client, const struct cay_buf *frame, int fd)
{
    ssize_t n = 0;
    if (client->out.size == 0) {
        n = sock_send(client->chan.sock, frame->data, frame->size, &fd, fd >= 0);
        if (n < 0 && (errno != EAGAIN || fd >= 0))
            return -1;
        n = CAY_MAX(n, 0);
        client->progress_us = n ? cay_now_us() : client->progress_us;
    }
    return buf_add(&client->out, frame->data + n, frame->size - (size_t)n);
}

void client_send(struct client *client, const struct msg *msg, int fd)
{
    /* One buffer for all: a stream's frames are large, and mostly gone at once. */
    struct cay_buf *scratch = &client->keeper->scratch;
    scratch->max = CAY_MAX_FRAME + FRAME_HEADER;
    scratch->size = 0;
    scratch->failed = false;
    if (client->out.size > MAX_UNSENT - CAY_MAX_FRAME || msg_encode(scratch, msg, fd >= 0) < 0 ||
        send_now(client, scratch, fd) < 0)
        hang_up(client);
    else
        flush(client);
}

void client_fail(struct client *client, const struct cay_error *why)
{
    const struct msg msg = {
        .type = MSG_ERROR,
        .tag = client->tag,
        .code = why->code,
        .sys_errno = (uint64_t)why->sys_errno,
        .text = why->text,
    };
    client_send(client, &msg, -1);
}

void client_crowded(struct client *client)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_LIMIT, "%d callers are connected to the sandbox already", CAY_MAX_CLIENTS);
    client_fail(client, &err);
}

void client_leave(struct client *client)
{
    timer_clear(&client->keeper->loop, &client->timer);
    client->mode = CLIENT_IDLE;
    client->proc = NULL;
}

/* Why bytes from `offset` on are not kept. */
static uint64_t why_missing(const struct spool *spool, uint64_t offset)
{
    if (offset >= spool->start)
        return CAY_OK;
    return offset < spool->unstored ? CAY_E_NO_SPACE : CAY_E_LIMIT;
}

/* Adds to the last message of a stream how much of either stream there was up to `offset`. */
static void add_totals(struct msg *msg, const struct spool *spool, uint64_t offset)
{
    uint64_t at = CAY_MAX(offset, spool->start);
    msg->end = spool_errors(spool, at);
    msg->size = at - msg->end;
}

/* A stream has followed to where the output ended; who only waited is told where it is now. */
static void tell_exit(struct client *client, const struct proc *proc, uint64_t end, bool truncated,
                      uint64_t missing)
{
    struct msg msg = {
        .type = MSG_EXIT,
        .tag = client->tag,
        .pid = (uint64_t)proc->pid,
        .offset = end,
        .number = proc->spool.start,
        .code = missing,
        .exit_code = (uint64_t)proc->exit_code,
        .signal = (uint64_t)proc->signal,
        .flags = (proc->timed_out ? MSG_F_TIMED_OUT : 0) | (proc->oom ? MSG_F_OOM : 0) |
                 (truncated ? MSG_F_TRUNCATED : 0),
        .duration_us = proc->ended_us - proc->started_us,
        .cpu_us = proc->cpu_us,
        .peak_memory = proc->peak_memory,
        .text = proc->why,
    };
    add_totals(&msg, &proc->spool, end);
    client_send(client, &msg, -1);
}

void client_exit(struct client *client, const struct proc *proc)
{
    tell_exit(client, proc, proc->spool.end, proc->spool.start > 0, CAY_OK);
}

/* The host's disk does not give back what was kept: an error, and not a stream that never ends. */
static void fail_read(struct client *client)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_LOST, "output that was kept cannot be read back from the host's disk");
    client_leave(client);
    client_fail(client, &err);
}

/* One frame of output. False when there is none. */
static bool send_output(struct client *client, const struct spool *spool)
{
    char chunk[CAY_MAX_DATA];
    int stream;
    uint64_t most = client->piece ? CAY_MIN(client->piece, sizeof(chunk)) : sizeof(chunk);
    uint64_t missing = why_missing(spool, client->fresh ? 0 : client->offset);
    client->missing = missing ? missing : client->missing;
    client->gap = client->gap || client->offset < spool->start;
    client->offset = CAY_MAX(client->offset, spool->start);
    if (client->offset >= client->until)
        return false;
    most = CAY_MIN(most, client->until - client->offset);
    size_t n = spool_read(spool, &client->offset, chunk, (size_t)most, &stream);
    if (n == 0 && client->offset < spool->end)
        fail_read(client);
    if (n == 0)
        return false;
    uint64_t errors = spool_errors(spool, client->offset);
    const struct msg msg = {
        .type = MSG_OUTPUT,
        .tag = client->tag,
        .pid = client->proc ? (uint64_t)client->proc->pid : 0,
        .stream = (uint64_t)stream,
        .offset = client->offset,
        .number = stream == 2 ? errors : client->offset - errors,
        .code = client->missing,
        .data = {chunk, n},
    };
    client->offset += n;
    client->missing = CAY_OK;
    client->fresh = false;
    client_send(client, &msg, -1);
    return true;
}

void client_stream(struct client *client, struct proc *proc, uint64_t offset, bool follow)
{
    const struct spool *spool = proc ? &proc->spool : &client->keeper->log;
    client->mode = CLIENT_STREAM;
    client->proc = proc;
    client->follow = follow;
    client->offset = offset == UINT64_MAX ? spool->start : offset;
    client->gap = false;
    client->missing = CAY_OK;
    client->fresh = offset == UINT64_MAX;
    if (proc && follow)
        flow_met(proc);
    client->until = !follow || (proc && proc->state == PROC_ENDED) ? spool->end : UINT64_MAX;
}

void client_pump(struct client *client)
{
    struct proc *proc = client->proc;
    const struct spool *spool = proc ? &proc->spool : &client->keeper->log;
    if (client->mode != CLIENT_STREAM)
        return;
    while (client->out.size == 0 && client->mode == CLIENT_STREAM)
        if (!send_output(client, spool))
            break;
    if (client->out.size || client->offset < client->until || client->mode != CLIENT_STREAM)
        return;
    client_leave(client);
    if (proc && proc->state == PROC_ENDED) {
        tell_exit(client, proc, client->until, client->gap, client->missing);
        return;
    }
    /* A reader that is slower than what drops output learns here what it has missed at the end. */
    struct msg msg = {
        .type = MSG_OK, .tag = client->tag, .offset = client->until, .code = client->missing};
    add_totals(&msg, spool, client->until);
    client_send(client, &msg, -1);
}

void clients_of(struct keeper *k, struct proc *proc)
{
    for (struct client *c = k->clients; c; c = c->next)
        if (c->mode == CLIENT_STREAM && c->proc == proc)
            client_pump(c);
}

/* Handles what has been read so far, one request at a time. */
void client_serve(struct client *client)
{
    struct msg msg;
    struct cay_error err;
    while (!client->held) {
        size_t eaten = client->chan.eaten;
        int popped = chan_pop(&client->chan, &msg, &err);
        if (popped == 0)
            return;
        if (popped < 0) {
            if (err.code == CAY_E_VERSION) /* the caller adds who it is: see msg_to_error */
                cay_fail(&err, CAY_E_VERSION, "the keeper of sandbox '%s' is " WIRE_WHO,
                         client->keeper->id);
            client_fail(client, &err);
            shutdown(client->chan.sock, SHUT_RDWR);
            return;
        }
        ops_handle(client, &msg);
        msg_done(&msg);
        if (client->again)
            client->chan.eaten = eaten; /* it stays the next one */
        client->again = false;
    }
    update_watch(client); /* held: nothing more is read until its process has taken what it has */
}

static void on_client(struct watch *watch, uint32_t events)
{
    struct client *client = container_of(watch, struct client, watch);
    struct keeper *k = client->keeper;
    if (events & EPOLLOUT) {
        struct proc *proc = client->proc;
        bool stream = client->mode == CLIENT_STREAM;
        flush(client);
        client_pump(client);
        if (stream)
            flow_check(k, proc);
        if (k->phase == PHASE_OVER)
            clients_over(k);
    }
    if (is_patient(client))
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        ssize_t n = chan_fill(&client->chan);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            bool owner = client->creator && k->spec.spec.ephemeral;
            client_free(client);
            if (owner && k->phase == PHASE_UP)
                life_end(k, CAY_STATE_EXITED, "its creator went away", 0);
            if (k->phase == PHASE_OVER)
                clients_over(k);
            return;
        }
        client_serve(client);
    }
}

void client_resume(struct client *client)
{
    client->held = false;
    update_watch(client);
    client_serve(client);
}

struct client *client_new(struct keeper *k, struct chan *chan, bool creator)
{
    struct client *client = calloc(1, sizeof(*client));
    if (!client)
        return NULL;
    fcntl(chan->sock, F_SETFL, O_RDWR | O_NONBLOCK);
    client->keeper = k;
    client->creator = creator;
    client->channel = -1;
    client->out = CAY_BUF(MAX_UNSENT);
    client->watch = (struct watch){.fd = -1, .ready = on_client};
    client->chan = *chan;
    *chan = (struct chan){.sock = -1};
    update_watch(client);
    client->next = k->clients;
    k->clients = client;
    k->n_clients++;
    return client;
}

void client_free(struct client *client)
{
    struct keeper *k = client->keeper;
    struct proc *followed = client->proc;
    for (struct client **at = &k->clients; *at; at = &(*at)->next) {
        if (*at == client) {
            *at = client->next;
            break;
        }
    }
    for (struct proc *p = k->procs; p; p = p->next)
        if (p->starter == client)
            p->starter = NULL;
    lease_let_go(client);
    k->n_clients--;
    timer_clear(&k->loop, &client->timer);
    loop_forget(&k->loop, &client->watch);
    close_fd(&client->channel);
    buf_done(&client->out);
    chan_done(&client->chan);
    free(client);
    flow_check(k, followed);
    life_use(k);
}

/* The run directory lets nobody else in; this is the second lock on the same door. */
static bool is_own_user(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
           (peer.uid == geteuid() || peer.uid == 0);
}

static void on_connect(struct watch *watch, uint32_t events)
{
    struct keeper *k = container_of(watch, struct keeper, listen_watch);
    (void)events;
    autofd int sock = accept4(k->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
        /* Who waits would wake us again and again: look away for a while. */
        loop_watch(&k->loop, &k->listen_watch, k->listen_fd, 0);
        timer_set(&k->loop, &k->listen_timer, cay_now_us() + LOOK_AWAY_US);
    }
    if (sock < 0 || !is_own_user(sock))
        return;
    struct chan chan;
    chan_init(&chan, steal_fd(&sock));
    struct client *client = client_new(k, &chan, false);
    if (!client) {
        chan_done(&chan);
        return;
    }
    life_use(k);
    client->spare = k->n_clients > CAY_MAX_CLIENTS;
    if (k->n_clients > CAY_MAX_CLIENTS + CAY_SPARE_CLIENTS) {
        client_crowded(client);
        client_free(client);
        return;
    }
    /* The request is usually there already: answer it without another turn of the loop. */
    on_client(&client->watch, EPOLLIN);
}

static void on_look_again(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, listen_timer);
    if (k->listen_watch.fd >= 0)
        loop_watch(&k->loop, &k->listen_watch, k->listen_fd, EPOLLIN);
}

int client_listen(struct keeper *k, struct cay_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    autofd int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    autofd int hold = -1;
    if (sock < 0)
        return cay_fail_errno(err, errno, "cannot make a socket");
    if (home_ctl_address(&k->cay, k->id, &address, &hold, err) < 0)
        return -1;
    if (bind(sock, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(sock, BACKLOG) < 0)
        return cay_fail_errno(err, errno, "cannot listen on %s", address.sun_path);
    k->listen_fd = steal_fd(&sock);
    k->listen_watch = (struct watch){.fd = -1, .ready = on_connect};
    k->listen_timer.fire = on_look_again;
    return 0;
}

static bool is_owed(const struct client *client)
{
    const struct spool *spool = client->proc ? &client->proc->spool : &client->keeper->log;
    uint64_t end = CAY_MIN(client->until, spool->end);
    return client->out.size || (client->mode == CLIENT_STREAM && client->offset < end);
}

void clients_over(struct keeper *k)
{
    bool owed = false;
    for (struct client *c = k->clients; c; c = c->next) {
        /* A log has its end now, and its readers get an answer: without one they cannot tell the
         * end from a keeper that was killed. */
        if (c->mode == CLIENT_STREAM && !c->proc)
            c->until = CAY_MIN(c->until, k->log.end);
        client_pump(c);
        owed = owed || is_owed(c);
    }
    k->loop.stop = !owed;
}
