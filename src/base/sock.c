/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sock.h"

#include "base/util.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

union control {
    struct cmsghdr align;
    char space[CMSG_SPACE(SOCK_MAX_FDS * sizeof(int))];
};

static ssize_t send_with(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds,
                         int flags)
{
    union control control = {0};
    struct iovec iov = {(void *)bytes, size};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > SOCK_MAX_FDS) {
        errno = EINVAL;
        return -1;
    }
    if (n_fds) {
        mh.msg_control = control.space;
        mh.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    ssize_t n;
    do
        n = sendmsg(sock, &mh, MSG_NOSIGNAL | flags);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t sock_send(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds)
{
    return send_with(sock, bytes, size, fds, n_fds, 0);
}

ssize_t sock_send_within(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds,
                         uint64_t ms)
{
    struct pollfd p = {.fd = sock, .events = POLLOUT};
    uint64_t end = cay_after_ms(ms);
    for (;;) {
        ssize_t n = send_with(sock, bytes, size, fds, n_fds, MSG_DONTWAIT);
        if (n >= 0 || errno != EAGAIN)
            return n;
        uint64_t now = cay_now_us();
        if (now >= end)
            return -1;
        if (poll(&p, 1, (int)((end - now) / 1000) + 1) < 0 && errno != EINTR)
            return -1;
    }
}

ssize_t sock_recv(int sock, void *buffer, size_t size, int *fds, size_t *n_fds, size_t max)
{
    union control control;
    struct iovec iov = {buffer, size};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = control.space,
                        .msg_controllen = sizeof(control.space)};
    ssize_t n;
    do
        n = recvmsg(sock, &mh, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&mh); c; c = CMSG_NXTHDR(&mh, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (n_fds && *n_fds < max)
                fds[(*n_fds)++] = fd;
            else
                close(fd);
        }
    }
    return n;
}

int sock_send_all(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = sock_send(sock, (const char *)bytes + done, size - done, fds, done ? 0 : n_fds);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = sock, .events = POLLOUT};
            if (poll(&p, 1, -1) < 0 && errno != EINTR)
                return -1;
            continue;
        }
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int sock_pair(int out[2])
{
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, out);
}
