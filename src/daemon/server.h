/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners and connections. libmicrohttpd parses HTTP and does TLS; it has no thread and no loop
 * of its own here: each listener is a descriptor on our loop.
 */
#ifndef CAY_DAEMON_SERVER_H
#define CAY_DAEMON_SERVER_H

#include "daemon/daemon.h"

struct request;
struct listener;

/* One client's connection, from accept to close. */
struct connection {
    struct daemon *d;
    struct connection *next, **link;
    struct listener *listener;
    struct request *request; /* that is at work, from its first line on */
    uint64_t quiet_since_us; /* no request has whole headers; 0: one has */
    int fd;
    unsigned char token[32]; /* hash of the token of its last request */
    bool by_token;
    bool local; /* over the unix socket */
    bool cut;   /* we are closing it */
};

/* Listening sockets of one daemon. */
#define SERVER_MAX_LISTENERS 16
int server_open(struct daemon *d, struct server **out, struct cay_error *err);
/* Closes all connections; requests at work are dropped. */
void server_close(struct server *server);
/* No new connections; what runs goes on. `successor`: it will accept those that come meanwhile. */
void server_quiesce(struct server *server, bool successor);
/* A request is at work, or one may be on its way. */
bool server_busy(const struct server *server);
/* The listening sockets, for who comes after us, and the path of the one that is ours to remove in
 * the end. Fills at most `max`; the number. */
size_t server_listeners(const struct server *server, int *fds, size_t max, char own[static 108]);
/* The variable that tells that path to who comes after us. */
#define SERVER_OWN_SOCKET "CAYD_OWN_SOCKET"
/* "http://127.0.0.1:7733": where clients on this machine reach it over TCP; false: nowhere. */
#define SERVER_URL 80
bool server_url(const struct server *server, char out[static SERVER_URL]);
/* One of its requests may go on: libmicrohttpd has to look at it, soon but not now. */
void connection_stir(struct connection *c);
/* Cuts a connection: its client sees the end at once. */
void connection_cut(struct connection *c);

#endif
