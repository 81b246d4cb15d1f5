/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files: the caller's end of a file channel. The worker at the other end is a process inside the
 * sandbox, so whatever it is tricked into opening is the sandbox's own. Its answers are data,
 * bounded by the frame.
 *
 * It can be stopped from inside, or hang in a file system that does not answer. So it says now and
 * then that it lives (FS_ALIVE), and is waited for only as long as it does. What counts is the time
 * in which the caller waits for it: not that in which the caller's own source or sink takes its
 * time, nor that in which the sandbox is paused.
 */
#include "base/err.h"
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"
#include "sandbox/sandbox.h"
#include "wire/version.h"

#include <string.h>
#include <sys/stat.h>

struct cay_fs {
    struct chan chan;
    struct cay *cay; /* borrowed, as the sandbox borrows it */
    char id[CAY_MAX_ID];
    bool alive; /* it is of a version that says so */
};

int cay_fs_open(struct cay_sandbox *sandbox, const char *user, struct cay_fs **out,
                struct cay_error *err)
{
    struct chan chan;
    struct msg answer;
    struct cay_fs *fs = calloc(1, sizeof(*fs));
    if (!fs)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (sandbox_call(sandbox, &(struct msg){.type = OP_FS, .user = user}, &chan, &answer, err) <
        0) {
        free(fs);
        return -1;
    }
    int sock = chan_take_fd(&chan);
    fs->alive = chan.minor >= WIRE_MINOR_ALIVE; /* keeper and worker are of one build */
    fs->cay = sandbox->cay;
    memcpy(fs->id, sandbox->id, sizeof(fs->id));
    msg_done(&answer);
    chan_done(&chan);
    if (sock < 0) {
        free(fs);
        return cay_fail(err, CAY_E_INTERNAL, "the keeper gave no file channel");
    }
    chan_init(&fs->chan, sock);
    *out = fs;
    return 0;
}

void cay_fs_close(struct cay_fs *fs)
{
    if (!fs)
        return;
    chan_done(&fs->chan);
    free(fs);
}

/* A worker that hung up: what the socket says of that tells nobody anything. */
static int hung_up(struct cay_error *err)
{
    return cay_fail(err, CAY_E_GONE, "the sandbox ended, or its file worker was killed");
}

static bool is_paused(struct cay *cay, const char *id)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_STATUS);
    autostatus struct status status = {0};
    return sandbox_status(cay, id, &buf, NULL) == 0 &&
           status_decode(buf.data, buf.size, &status, NULL) == 0 &&
           status.state == CAY_STATE_PAUSED;
}

int sandbox_worker_look(struct cay *cay, const char *id, unsigned *looks, struct cay_error *err)
{
    *looks = is_paused(cay, id) ? 0 : *looks + 1;
    if (*looks < SANDBOX_WORKER_LOOKS)
        return 0;
    return cay_fail(err, CAY_E_UNAVAILABLE,
                    "the file worker in sandbox '%s' does not answer: it was stopped from inside, "
                    "or hangs in a file system that does not answer",
                    id);
}

/* Sends what the socket takes. What comes meanwhile is a sign of life too, and is taken out of the
 * way of a worker that has something to say before it reads on. */
static ssize_t send_some(void *peer, const char *bytes, size_t size, struct cay_error *err)
{
    struct cay_fs *fs = peer;
    for (unsigned looks = 0;;) {
        ssize_t n = sock_send_within(fs->chan.sock, bytes, size, NULL, 0, SANDBOX_WORKER_LOOK_MS);
        if (n >= 0)
            return n;
        if (errno != EAGAIN)
            return cay_fail_errno(err, errno, "cannot send to the peer");
        if (sandbox_await(fs->chan.sock, 0) && chan_fill(&fs->chan) > 0)
            looks = 0;
        else if (fs->alive && sandbox_worker_look(fs->cay, fs->id, &looks, err) < 0)
            return -1;
    }
}

static int send(struct cay_fs *fs, const struct msg *request, struct cay_error *err)
{
    struct cay_error why;
    if (sandbox_send_parts(request, send_some, fs, &why) == 0)
        return 0;
    return why.code == CAY_E_GONE ? hung_up(err)
                                  : cay_fail_copy(err, why.code, why.sys_errno, why.text);
}

/* As chan_recv, but for signs of life: those only say that it is worth waiting. */
static int hear(struct cay_fs *fs, struct msg *out, struct cay_error *err)
{
    for (unsigned looks = 0;;) {
        int popped = chan_pop(&fs->chan, out, err);
        if (popped && (popped < 0 || out->type != FS_ALIVE))
            return popped;
        if (popped) {
            msg_done(out);
            continue;
        }
        bool ready = !fs->alive || sandbox_await(fs->chan.sock, SANDBOX_WORKER_LOOK_MS);
        if (!ready && sandbox_worker_look(fs->cay, fs->id, &looks, err) < 0)
            return -1;
        ssize_t n = ready ? chan_fill(&fs->chan) : 1;
        if (n <= 0)
            return n < 0 ? cay_fail_errno(err, errno, "cannot read from the peer") : 0;
        looks = ready ? 0 : looks;
    }
}

/* The next message. 1: one to handle; 0: OK, the end; -1. */
static int next(struct cay_fs *fs, struct msg *out, struct cay_error *err)
{
    struct cay_error why = {0};
    int got = hear(fs, out, &why);
    if (got == 0 || (got < 0 && why.code == CAY_E_GONE))
        return hung_up(err);
    if (got < 0 && why.code == CAY_E_UNAVAILABLE)
        chan_done(&fs->chan); /* nothing may be asked of it again */
    if (got < 0)
        return cay_fail_copy(err, why.code, why.sys_errno, why.text);
    if (out->type == MSG_OK || out->type == MSG_ERROR) {
        got = out->type == MSG_OK ? 0 : msg_to_error(out, err);
        msg_done(out);
    }
    return got;
}

/* Every answer goes to `take`; when that says stop, the rest is not waited for: the
 * channel is cut. */
static int drain(struct cay_fs *fs, const struct msg *request,
                 int (*take)(const struct msg *msg, void *data), void *data, struct cay_error *err)
{
    struct msg msg;
    int got = send(fs, request, err) < 0 ? -1 : 1;
    while (got > 0 && (got = next(fs, &msg, err)) > 0) {
        int stop = take ? take(&msg, data) : 0;
        msg_done(&msg);
        if (stop) {
            chan_done(&fs->chan);
            return 0;
        }
    }
    return got;
}

struct taker {
    union {
        cay_sink sink;
        int (*stat)(const struct cay_stat *st, void *data);
        int (*match)(const struct cay_match *match, void *data);
        int (*change)(const struct cay_change *change, void *data);
    };
    void *data;
};

static int take_data(const struct msg *msg, void *data)
{
    const struct taker *taker = data;
    return msg->type == FS_DATA ? taker->sink(msg->data.data, msg->data.size, taker->data) : 0;
}

static int take_entry(const struct msg *msg, void *data)
{
    const struct taker *taker = data;
    const struct cay_stat st = {
        .type = cay_type_letter((mode_t)msg->mode),
        .mode = (uint32_t)msg->mode & 07777,
        .uid = (uint32_t)msg->uid,
        .gid = (uint32_t)msg->gid,
        .size = msg->size,
        .mtime_ns = (int64_t)msg->mtime_ns,
        .inode = msg->inode,
        .links = msg->links,
        .name = msg->path ? msg->path : "",
        .target = msg->target,
    };
    return msg->type == FS_ENTRY ? taker->stat(&st, taker->data) : 0;
}

static int take_match(const struct msg *msg, void *data)
{
    const struct taker *taker = data;
    const struct cay_match match = {msg->path ? msg->path : "", msg->number,
                                    msg->text ? msg->text : ""};
    return msg->type == FS_MATCH ? taker->match(&match, taker->data) : 0;
}

int cay_fs_read(struct cay_fs *fs, const char *path, uint64_t offset, uint64_t size, cay_sink sink,
                void *data, struct cay_error *err)
{
    struct taker taker = {.sink = sink, .data = data};
    const struct msg request = {.type = FS_READ, .path = path, .offset = offset, .number = size};
    return drain(fs, &request, take_data, &taker, err);
}

/* Sends what the source gives and takes the verdict. */
static int upload(struct cay_fs *fs, const struct msg *request, cay_source source, void *data,
                  struct cay_error *err)
{
    struct msg msg;
    struct cay_error lost;
    autofree char *chunk = malloc(CAY_MAX_DATA);
    if (!chunk)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (send(fs, request, err) < 0)
        return -1;
    ssize_t n;
    bool refused = false;
    while (!refused && (n = source(chunk, CAY_MAX_DATA, data)) > 0) {
        const struct msg part = {.type = FS_DATA, .data = {chunk, (size_t)n}};
        /* A worker that gave up says why before it stops listening. */
        refused = send(fs, &part, &lost) < 0;
    }
    const struct msg end = {.type = FS_END, .flags = !refused && n < 0 ? MSG_F_ABORT : 0};
    bool failed = refused || send(fs, &end, &lost) < 0;
    if (failed && lost.code != CAY_E_GONE) { /* it waits for more, and would say nothing */
        chan_done(&fs->chan);
        return cay_fail_copy(err, lost.code, lost.sys_errno, lost.text);
    }
    int got = next(fs, &msg, err);
    if (got > 0)
        msg_done(&msg);
    if (!refused && n < 0)
        return cay_fail(err, CAY_E_INVALID, "the upload was given up by its source");
    return got > 0 ? cay_fail(err, CAY_E_INTERNAL, "the file worker sent something unexpected")
                   : got;
}

int cay_fs_write(struct cay_fs *fs, const char *path, uint32_t mode, cay_source source, void *data,
                 struct cay_error *err)
{
    const struct msg request = {.type = FS_WRITE, .path = path, .mode = mode};
    return upload(fs, &request, source, data, err);
}

int cay_fs_stat(struct cay_fs *fs, const char *path, bool follow,
                int (*each)(const struct cay_stat *st, void *data), void *data,
                struct cay_error *err)
{
    struct taker taker = {.stat = each, .data = data};
    const struct msg request = {.type = FS_STAT, .path = path, .flags = follow ? MSG_F_FOLLOW : 0};
    return drain(fs, &request, take_entry, &taker, err);
}

int cay_fs_list(struct cay_fs *fs, const char *path, uint32_t depth,
                int (*each)(const struct cay_stat *st, void *data), void *data,
                struct cay_error *err)
{
    struct taker taker = {.stat = each, .data = data};
    const struct msg request = {.type = FS_LIST, .path = path, .number = depth};
    return drain(fs, &request, take_entry, &taker, err);
}

int cay_fs_mkdir(struct cay_fs *fs, const char *path, uint32_t mode, struct cay_error *err)
{
    return drain(fs, &(struct msg){.type = FS_MKDIR, .path = path, .mode = mode}, NULL, NULL, err);
}

int cay_fs_move(struct cay_fs *fs, const char *from, const char *to, struct cay_error *err)
{
    return drain(fs, &(struct msg){.type = FS_MOVE, .path = from, .target = to}, NULL, NULL, err);
}

int cay_fs_remove(struct cay_fs *fs, const char *path, bool recursive, struct cay_error *err)
{
    const struct msg request = {
        .type = FS_REMOVE, .path = path, .flags = recursive ? MSG_F_RECURSIVE : 0};
    return drain(fs, &request, NULL, NULL, err);
}

int cay_fs_find(struct cay_fs *fs, const char *path, const char *glob, uint64_t limit,
                int (*each)(const struct cay_stat *st, void *data), void *data,
                struct cay_error *err)
{
    struct taker taker = {.stat = each, .data = data};
    const struct msg request = {.type = FS_FIND, .path = path, .glob = glob, .number = limit};
    return drain(fs, &request, take_entry, &taker, err);
}

int cay_fs_grep(struct cay_fs *fs, const char *path, const char *pattern, bool literal,
                bool ignore_case, const char *glob, uint64_t limit,
                int (*each)(const struct cay_match *match, void *data), void *data,
                struct cay_error *err)
{
    struct taker taker = {.match = each, .data = data};
    const struct msg request = {
        .type = FS_GREP,
        .path = path,
        .pattern = pattern,
        .glob = glob,
        .number = limit,
        .flags = (literal ? MSG_F_LITERAL : 0) | (ignore_case ? MSG_F_IGNORE_CASE : 0),
    };
    return drain(fs, &request, take_match, &taker, err);
}

/* OK comes first here and means "watching"; changes follow until the callback has had enough. */
int cay_fs_watch(struct cay_fs *fs, const char *path, bool recursive,
                 int (*each)(const struct cay_change *change, void *data), void *data,
                 struct cay_error *err)
{
    struct msg msg;
    const struct msg request = {
        .type = FS_WATCH, .path = path, .flags = recursive ? MSG_F_RECURSIVE : 0};
    int got = send(fs, &request, err) < 0 ? -1 : next(fs, &msg, err);
    if (got != 0)
        return -1;
    for (;;) {
        got = next(fs, &msg, err);
        if (got <= 0)
            return got;
        const struct cay_change change = {(char)msg.number, msg.path ? msg.path : ""};
        int stop = each(&change, data);
        msg_done(&msg);
        if (stop) {
            chan_done(&fs->chan);
            return 0;
        }
    }
}

int cay_fs_tar_out(struct cay_fs *fs, const char *path, cay_sink sink, void *data,
                   struct cay_error *err)
{
    struct taker taker = {.sink = sink, .data = data};
    return drain(fs, &(struct msg){.type = FS_TAR_OUT, .path = path}, take_data, &taker, err);
}

int cay_fs_tar_in(struct cay_fs *fs, const char *path, cay_source source, void *data,
                  struct cay_error *err)
{
    return upload(fs, &(struct msg){.type = FS_TAR_IN, .path = path}, source, data, err);
}
