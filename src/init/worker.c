/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file worker's loop and its talk with the caller. See fs.h.
 *
 * An upload that fails is answered at once, while the caller may still be sending; what then
 * arrives of it (DATA, END) outside of a request is ignored, so a caller need not look before its
 * END.
 */
#include "init/fs.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"
#include "init/account.h"
#include "init/init.h"
#include "wire/version.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

/* Frames are gathered up to here: a listing is a few large sends, not thousands of small ones. */
#define BATCH (32u << 10)
/* After all commands, which have twice that. */
#define WORKER_SCORE 50

/* ---- a sign of life ------------------------------------------------------------------------- */

/* Between two frames, whatever else the worker is at. A socket without room for it has something
 * for the caller to read anyway. */
static void say_alive(int number)
{
    static const uint8_t frame[FRAME_HEADER] = {[4] = FS_ALIVE, [5] = WIRE_MINOR, [7] = WIRE_MAJOR};
    int eno = errno;
    (void)number;
    (void)!send(INIT_KEEPER_FD, frame, sizeof(frame), MSG_DONTWAIT | MSG_NOSIGNAL);
    errno = eno;
}

/* From the first request on, and between requests as well: so a caller that hears nothing need not
 * ask itself what the worker may be at. */
static void begin_alive(struct worker *worker)
{
    const struct timeval every = {.tv_sec = CAY_ALIVE_MS / 1000};
    if (worker->alive || worker->chan.minor < WIRE_MINOR_ALIVE)
        return;
    worker->alive = true;
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = say_alive, .sa_flags = SA_RESTART}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL);
}

static int send_whole(struct worker *worker)
{
    sigset_t alarm, before;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm, &before);
    int sent = sock_send_all(worker->chan.sock, worker->out.data, worker->out.size, NULL, 0);
    int eno = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    errno = eno;
    return sent;
}

/* ---- talking to the caller ------------------------------------------------------------------ */

int fs_flush(struct worker *worker, struct cay_error *err)
{
    if (worker->out.size && send_whole(worker) < 0)
        return cay_fail_errno(err, errno, "cannot send to the caller");
    worker->out.size = 0;
    return 0;
}

int fs_send(struct worker *worker, struct msg *msg, struct cay_error *err)
{
    msg->tag = worker->tag;
    size_t before = worker->out.size;
    if (msg_encode(&worker->out, msg, 0) < 0) {
        worker->out.size = before;
        worker->out.failed = false;
        return cay_fail(err, CAY_E_TOO_LARGE, "an answer is larger than %u bytes", CAY_MAX_FRAME);
    }
    return worker->out.size < BATCH ? 0 : fs_flush(worker, err);
}

int fs_send_data(struct worker *worker, const char *data, size_t size, struct cay_error *err)
{
    return fs_send(worker, &(struct msg){.type = FS_DATA, .data = {data, size}}, err);
}

int fs_recv_data(struct worker *worker, struct wire_bytes *out, struct cay_error *err)
{
    automsg struct msg msg = {0};
    int n = chan_recv(&worker->chan, &msg, err);
    if (n < 0)
        return -1;
    if (n == 0)
        return cay_fail(err, CAY_E_GONE, "the caller hung up");
    if (msg.type == FS_DATA) {
        *out = msg.data;
        return 1;
    }
    if (msg.type == FS_END && !(msg.flags & MSG_F_ABORT))
        return 0;
    return cay_fail(err, CAY_E_INVALID, "the upload was aborted by its caller");
}

int fs_tick(struct worker *worker, struct cay_error *err)
{
    struct pollfd peer = {.fd = worker->chan.sock};
    if (++worker->ticks % 64 == 0 && poll(&peer, 1, 0) > 0 && peer.revents & (POLLHUP | POLLERR))
        return cay_fail(err, CAY_E_GONE, "the caller hung up");
    return 0;
}

static const struct {
    uint16_t type;
    bool has_path;
    fs_op *run;
} ops[] = {
    {FS_READ, true, fs_read},     {FS_WRITE, true, fs_write},     {FS_STAT, true, fs_stat},
    {FS_LIST, false, fs_list},    {FS_MKDIR, true, fs_mkdir},     {FS_MOVE, true, fs_move},
    {FS_REMOVE, true, fs_remove}, {FS_FIND, false, fs_find},      {FS_GREP, false, fs_grep},
    {FS_WATCH, false, fs_watch},  {FS_TAR_OUT, true, fs_tar_out}, {FS_TAR_IN, true, fs_tar_in},
};

static int serve_one(struct worker *worker, struct msg *msg, struct cay_error *err)
{
    for (size_t i = 0; i < CAY_COUNT(ops); i++) {
        if (ops[i].type != msg->type)
            continue;
        if (ops[i].has_path && (!msg->path || !*msg->path))
            return cay_fail(err, CAY_E_INVALID, "no path was given");
        if (!msg->path || !*msg->path)
            msg->path = ".";
        return ops[i].run(worker, msg, err);
    }
    return cay_fail(err, CAY_E_UNSUPPORTED,
                    "the file worker is " WIRE_WHO " and does not know request %u",
                    (unsigned)msg->type);
}

static int answer(struct worker *worker, const struct cay_error *why)
{
    struct msg msg = {.type = MSG_OK};
    if (why)
        msg = (struct msg){.type = MSG_ERROR,
                           .code = (uint64_t)why->code,
                           .sys_errno = (uint64_t)why->sys_errno,
                           .text = why->text};
    return fs_send(worker, &msg, NULL) < 0 ? -1 : fs_flush(worker, NULL);
}

static void serve(struct worker *worker)
{
    for (;;) {
        struct cay_error err = {0};
        struct msg msg;
        int got = chan_recv(&worker->chan, &msg, &err);
        if (got < 0) /* a newer version must learn what was not understood */
            answer(worker, &err);
        if (got <= 0)
            return;
        begin_alive(worker);
        bool leftover = msg.type == FS_DATA || msg.type == FS_END;
        worker->tag = msg.tag;
        bool failed = !leftover && serve_one(worker, &msg, &err) < 0;
        msg_done(&msg);
        if (!leftover && answer(worker, failed ? &err : NULL) < 0)
            return;
        /* Between requests a worker holds nothing. */
        buf_done(&worker->out);
        if (worker->chan.in.size == worker->chan.eaten) {
            buf_done(&worker->chan.in);
            worker->chan.eaten = 0;
        }
    }
}

static void set_limits(void)
{
    struct rlimit files;
    umask(022);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
#ifndef __SANITIZE_ADDRESS__
    setrlimit(RLIMIT_AS, &(struct rlimit){CAY_WORKER_MEMORY, CAY_WORKER_MEMORY});
#endif
}

/* Becomes the user, in a frame of its own: the account is large and not needed again. */
static int settle(const struct msg *msg, struct cay_error *err)
{
    struct account account;
    const char *cwd = msg->cwd && *msg->cwd ? msg->cwd : "/";
    if (account_find(msg->user, &account, err) < 0 || account_become(&account, err) < 0)
        return -1;
    if (chdir(cwd) < 0)
        return cay_fail_errno(err, errno, "cannot enter the directory '%s'", cwd);
    return 0;
}

_Noreturn void worker_run(const struct msg *msg, int sock, int status)
{
    struct cay_error err = {0};
    struct worker worker = {.out = CAY_BUF(CAY_MAX_FRAME + FRAME_HEADER + BATCH)};
    /* The status pipe stays open until the worker has become its user: it waits at 4 meanwhile. */
    if (dup3(sock, INIT_KEEPER_FD, O_CLOEXEC) < 0 ||
        (status != 4 && dup3(status, 4, O_CLOEXEC) < 0) || child_close_from(5) < 0) {
        cay_fail_errno(&err, errno, "cannot start a file worker");
        child_fail(status, &err);
    }
    child_unblock_signals();
    child_before_init(WORKER_SCORE);
    set_limits();
    if (settle(msg, &err) < 0)
        child_fail(4, &err);
    close(4);
    int flags = fcntl(INIT_KEEPER_FD, F_GETFL);
    fcntl(INIT_KEEPER_FD, F_SETFL, flags & ~O_NONBLOCK);
    chan_init(&worker.chan, INIT_KEEPER_FD);
    serve(&worker);
    _exit(0);
}
