/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What init says to the keeper. The socket is usually empty and a message goes out at once. When it
 * is full, messages wait here in their order while init goes on reaping and reading, so two sides
 * that both have much to say never wait for each other. The wait is bounded: init takes no new
 * requests while more than CAY_MAX_FRAME bytes wait, and beyond that only ends of processes
 * (CAY_MAX_PROCS) can be added.
 */
#include "init/init.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>

struct waiting {
    struct waiting *next;
    int fd; /* goes with the first byte; -1: none */
    size_t size, done;
    char bytes[];
};

bool init_may_read(const struct init *init)
{
    return init->waiting_size <= CAY_MAX_FRAME;
}

/* Sends what the socket takes; whether all went. A keeper that is gone ends init, and so the
 * sandbox. */
static bool try_send(struct init *init, const char *bytes, size_t size, size_t *done,
                     const int *fds, size_t n_fds)
{
    while (*done < size) {
        ssize_t n =
            sock_send(init->keeper.sock, bytes + *done, size - *done, fds, *done ? 0 : n_fds);
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n < 0)
            _exit(0);
        *done += (size_t)n;
    }
    return true;
}

static void enqueue(struct init *init, const struct cay_buf *buf, size_t done, const int *fds,
                    size_t n_fds)
{
    struct waiting *last = malloc(sizeof(*last) + buf->size);
    /* A lost message would leave the keeper waiting for ever: without memory for it, all ends. */
    if (!last)
        _exit(1);
    *last = (struct waiting){.fd = -1, .size = buf->size, .done = done};
    memcpy(last->bytes, buf->data, buf->size);
    if (n_fds && done == 0)
        last->fd = fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
    struct waiting **at = &init->waiting;
    while (*at)
        at = &(*at)->next;
    *at = last;
    init->waiting_size += last->size;
}

void init_send(struct init *init, const struct msg *msg, const int *fds, size_t n_fds)
{
    autobuf struct cay_buf buf = CAY_BUF(CAY_MAX_FRAME + FRAME_HEADER);
    size_t done = 0;
    if (msg_encode(&buf, msg, (uint8_t)n_fds) < 0)
        _exit(1);
    if (init->waiting || !try_send(init, buf.data, buf.size, &done, fds, n_fds))
        enqueue(init, &buf, done, fds, n_fds);
}

void init_flush(struct init *init)
{
    for (struct waiting *first; (first = init->waiting);) {
        if (!try_send(init, first->bytes, first->size, &first->done, &first->fd, first->fd >= 0))
            return;
        init->waiting = first->next;
        init->waiting_size -= first->size;
        close_fd(&first->fd);
        free(first);
    }
}

void init_send_ok(struct init *init, uint32_t tag)
{
    init_send(init, &(struct msg){.type = MSG_OK, .tag = tag}, NULL, 0);
}

void init_send_error(struct init *init, uint32_t tag, const struct cay_error *err)
{
    struct msg msg = {.type = MSG_ERROR,
                      .tag = tag,
                      .code = (uint64_t)err->code,
                      .sys_errno = (uint64_t)err->sys_errno,
                      .text = err->text};
    init_send(init, &msg, NULL, 0);
}
