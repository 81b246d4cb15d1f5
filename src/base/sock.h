/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unix sockets that carry bytes and descriptors. Descriptors arrive close-on-exec and are owned by
 * whoever received them.
 */
#ifndef CAY_BASE_SOCK_H
#define CAY_BASE_SOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SOCK_MAX_FDS 8

/* As sendmsg/recvmsg, EINTR handled, SIGPIPE never raised; -1 with errno. Descriptors are only
 * borrowed. */
ssize_t sock_send(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds);
/* What the socket takes, as soon as it takes something; EAGAIN: nothing for so long. Never blocks
 * longer, whatever kind of socket it is. */
ssize_t sock_send_within(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds,
                         uint64_t ms);
/* Appends what arrived to fds[] (room for `max`); descriptors beyond are closed. 0: the peer hung
 * up. */
ssize_t sock_recv(int sock, void *buffer, size_t size, int *fds, size_t *n_fds, size_t max);
/* Sends everything, waiting where the socket is full; the descriptors go with the first byte. 0 or
 * -1. */
int sock_send_all(int sock, const void *bytes, size_t size, const int *fds, size_t n_fds);
int sock_pair(int out[2]);

#endif
