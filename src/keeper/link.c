/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire to init. init is inside the sandbox and untrusted: what it says is bounded by the frame,
 * checked against what was asked, and a descriptor from it is looked at before it is used. Nonsense
 * ends the sandbox, not the keeper.
 */
#include "base/err.h"
#include "base/sock.h"
#include "base/util.h"
#include "jail/sys.h"
#include "keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

/* An init that does not read for this long is frozen or hostile. */
#define PATIENCE_MS 1000
/* From the end of its socket to its death. */
#define CLOSED_MS 500
/* The kernel has no memory for what init says: look again this often, this many times. */
#define ERROR_MS 50
#define MAX_ERRORS 200
/* From init's exec to its first frame; it takes a fraction of a millisecond. */
#define READY_MS 30000
/* Unix98 terminals: masters are /dev/ptmx (5:2). */
#define PTMX_MAJOR 5
#define PTMX_MINOR 2

int link_send(struct keeper *k, const struct msg *msg, const int *fds, size_t n,
              struct cay_error *err)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_FRAME + FRAME_HEADER);
    if (msg_encode(&buf, msg, (uint8_t)n) < 0)
        return cay_fail(err, CAY_E_TOO_LARGE,
                        "the request (arguments and environment) is larger than %u bytes",
                        CAY_MAX_FRAME);
    for (size_t done = 0; done < buf.size;) {
        ssize_t sent = sock_send(k->init.sock, buf.data + done, buf.size - done, fds, done ? 0 : n);
        if (sent > 0) {
            done += (size_t)sent;
            continue;
        }
        /* The child that was to become init has failed; why is what the creator will be told. */
        if (k->state == CAY_STATE_CREATING && errno != EAGAIN)
            return 0;
        struct pollfd p = {.fd = k->init.sock, .events = POLLOUT};
        bool paused = k->state == CAY_STATE_PAUSED; /* it reads nothing before the resume */
        if (errno == EAGAIN && poll(&p, 1, paused ? 0 : PATIENCE_MS) > 0)
            continue;
        if (!done && paused)
            return cay_fail(err, CAY_E_CONFLICT,
                            "the sandbox is paused, and too many requests wait for its resume");
        if (done > 0) /* half a frame: the wire is of no use any more */
            life_end(k, CAY_STATE_EXITED, "its init stopped answering", 0);
        return cay_fail(err, CAY_E_UNAVAILABLE, "the sandbox does not take requests now");
    }
    return 0;
}

/* The master of a terminal, or something else that init would like us to hold. */
static int checked_master(int fd)
{
    struct stat st;
    autofd int owned = fd;
    if (owned < 0 || fstat(owned, &st) < 0 || !S_ISCHR(st.st_mode) ||
        major(st.st_rdev) != PTMX_MAJOR || minor(st.st_rdev) != PTMX_MINOR ||
        fcntl(owned, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
        return -1;
    return steal_fd(&owned);
}

static void on_spawned(struct keeper *k, const struct msg *msg)
{
    struct proc *proc = proc_of_tag(k, msg->tag);
    int fd = chan_take_fd(&k->init);
    if (!proc || proc->state != PROC_STARTING || msg->pid < 2 || msg->pid > INT32_MAX) {
        close_fd(&fd);
        return;
    }
    int master = proc->pty ? checked_master(fd) : -1;
    if (!proc->pty)
        close_fd(&fd);
    proc_started(proc, (pid_t)msg->pid, master);
}

static void on_exited(struct keeper *k, const struct msg *msg)
{
    struct proc *proc = proc_find(k, (pid_t)msg->pid);
    if (proc && proc->state == PROC_RUNNING)
        proc_exited(proc, (int)msg->number, msg->cpu_us, msg->peak_memory);
}

static struct client *channel_client(struct keeper *k, uint32_t tag)
{
    for (struct client *c = k->clients; c; c = c->next)
        if (c->mode == CLIENT_CHANNEL && c->channel_tag == tag)
            return c;
    return NULL;
}

static void on_answer(struct keeper *k, const struct msg *msg)
{
    struct cay_error why = {0};
    struct proc *proc = proc_of_tag(k, msg->tag);
    struct client *client = channel_client(k, msg->tag);
    if (msg->type == MSG_ERROR)
        msg_to_error(msg, &why);
    if (proc && proc->state == PROC_STARTING && msg->type == MSG_ERROR) {
        proc_failed(proc, &why);
    } else if (client) {
        client->mode = CLIENT_IDLE;
        if (msg->type == MSG_ERROR)
            client_fail(client, &why);
        else
            client_send(client, &(struct msg){.type = MSG_OK, .tag = client->tag}, client->channel);
        close_fd(&client->channel);
    }
}

static void on_message(struct keeper *k, const struct msg *msg)
{
    switch (msg->type) {
    case INIT_SPAWNED:
        on_spawned(k, msg);
        return;
    case INIT_EXITED:
        on_exited(k, msg);
        return;
    case MSG_OK:
    case MSG_ERROR:
        on_answer(k, msg);
        return;
    default:
        return; /* what a hostile init makes up */
    }
}

/* Hands on what was read; what chan_pop says at the end of it. */
static int take_messages(struct keeper *k)
{
    struct msg msg;
    struct cay_error err;
    int popped;
    while ((popped = chan_pop(&k->init, &msg, &err)) > 0) {
        on_message(k, &msg);
        msg_done(&msg);
    }
    return popped;
}

static void on_init(struct watch *watch, uint32_t events)
{
    struct keeper *k = container_of(watch, struct keeper, init_watch);
    (void)events;
    ssize_t n = chan_fill(&k->init);
    int popped = n > 0 ? take_messages(k) : 0;
    if (n > 0)
        k->link_errors = 0;
    if ((n > 0 && popped == 0) || (n < 0 && errno == EAGAIN))
        return;
    loop_forget(&k->loop, &k->init_watch);
    if (n < 0 && (errno == ENOMEM || errno == ENOBUFS) && ++k->link_errors < MAX_ERRORS) {
        timer_set(&k->loop, &k->link_timer, cay_after_ms(ERROR_MS));
        return;
    }
    k->link_errors = 0;
    if (n > 0 && k->phase == PHASE_UP)
        life_end(k, CAY_STATE_EXITED, "init sent a malformed frame", 0);
    /* End of file comes with init's death, which the pidfd tells of with more words. */
    timer_set(&k->loop, &k->link_timer, cay_after_ms(CLOSED_MS));
}

/* Time to look again, or init closed its end and lives. */
static void on_link_timer(struct timer *timer)
{
    struct keeper *k = container_of(timer, struct keeper, link_timer);
    if (k->link_errors)
        loop_watch(&k->loop, &k->init_watch, k->init.sock, EPOLLIN);
    else if (k->phase < PHASE_KILLING)
        life_end(k, CAY_STATE_EXITED, "the connection to init was lost", 0);
}

void link_start(struct keeper *k, int sock)
{
    fcntl(sock, F_SETFL, O_RDWR | O_NONBLOCK);
    chan_init(&k->init, sock);
    k->init_watch = (struct watch){.fd = -1, .ready = on_init};
    k->link_timer.fire = on_link_timer;
    loop_watch(&k->loop, &k->init_watch, sock, EPOLLIN);
}

/* 1: its first frame came; 0: it ended; -1: neither, or it was another frame. */
static int read_ready(struct keeper *k)
{
    automsg struct msg msg = {0};
    struct pollfd p = {.fd = k->init.sock, .events = POLLIN};
    for (int popped = 0; popped == 0;) {
        int ready = poll(&p, 1, READY_MS);
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t n = ready > 0 ? chan_fill(&k->init) : -1;
        if (ready > 0 && n < 0 && (errno == EAGAIN || errno == ENOMEM || errno == ENOBUFS))
            continue;
        if (n <= 0)
            return n == 0 || errno == ECONNRESET ? 0 : -1;
        popped = chan_pop(&k->init, &msg, NULL);
        if (popped < 0)
            return -1;
    }
    return msg.type == INIT_READY ? 1 : -1;
}

int link_await(struct keeper *k, struct cay_error *err)
{
    int status = 0, ready = read_ready(k);
    if (ready > 0)
        return 0;
    sys_pidfd_kill(k->jail.pidfd, SIGKILL);
    while (waitpid(k->jail.pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (ready < 0)
        return cay_fail(err, CAY_E_UNAVAILABLE, "the sandbox's init did not get up: no answer");
    if (WIFEXITED(status))
        return cay_fail(err, CAY_E_INTERNAL, "the sandbox's init did not get up: exit code %d",
                        WEXITSTATUS(status));
    return cay_fail(err, CAY_E_INTERNAL, "the sandbox's init did not get up: killed by signal %d%s",
                    WTERMSIG(status),
                    cgroup_oom_kills(&k->cgroup) ? ", as it ran out of memory" : "");
}

void link_resume(struct keeper *k)
{
    if (take_messages(k) < 0)
        life_end(k, CAY_STATE_EXITED, "init sent a malformed frame", 0);
}
