/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server.h"

#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"
#include "daemon/log.h"
#include "daemon/request.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#define BACKLOG 1024
/* The first of the descriptors that a service manager hands over. */
#define ACTIVATED_FIRST 3
/* Memory for the headers of one connection, and for the pieces of bodies. */
#define CONNECTION_MEMORY (24u << 10)
/* A client that takes and gives nothing for this long is gone. */
#define STALL_S 120
/* From the end of a request to the headers of the next: also what a slow first line may take. */
#define QUIET_US 30000000
#define TICK_US 1000000
/* Out of descriptors: new clients wait this long. */
#define LOOK_AWAY_US 100000
/* A second, for a socket that is about to be nobody's. */
#define SERVED_TRIES 100
#define SERVED_PAUSE_NS 10000000
/* At the end: for what streams have to say. */
#define LAST_WORDS_MS 500
#define LAST_PAUSE_NS 1000000
/* What was written to an upgraded connection over TLS passes through libmicrohttpd, which takes a
 * few bytes at a time and does not say when all are gone. */
#define TLS_TURNS 200
/* Ticks between two looks whether tokens are still good. */
#define TOKEN_TICKS 5

struct listener {
    struct server *server;
    struct MHD_Daemon *mhd;
    struct watch watch;
    struct timer timer; /* when libmicrohttpd wants to look at its timeouts */
    int fd;
    bool local;
    struct timer away; /* armed: it is not watched until then */
};

struct server {
    struct daemon *d;
    struct listener listeners[SERVER_MAX_LISTENERS];
    size_t n;
    char *cert, *key;
    struct connection *connections; /* newest first */
    size_t n_connections;
    struct timer tick;
    uint64_t ticks;
    char socket_path[108]; /* ours to remove; empty: not */
    dev_t socket_dev;      /* while it is this one */
    ino_t socket_ino;
};

/* ---- connections ----------------------------------------------------------------------------- */

void connection_stir(struct connection *c)
{
    timer_set(&c->d->loop, &c->listener->timer, 0);
}

void connection_cut(struct connection *c)
{
    c->cut = true;
    shutdown(c->fd, SHUT_RDWR);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct listener *listener = cls;
    struct server *server = listener->server;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct connection *c = calloc(1, sizeof(*c));
        *context = c;
        if (!c || !info)
            return;
        *c = (struct connection){.d = server->d,
                                 .listener = listener,
                                 .next = server->connections,
                                 .link = &server->connections,
                                 .quiet_since_us = cay_now_us(),
                                 .fd = info->connect_fd,
                                 .local = listener->local};
        if (c->next)
            c->next->link = &c->next;
        server->connections = c;
        server->n_connections++;
        server->d->metrics.connections++;
        server->d->metrics.connections_total++;
        return;
    }
    struct connection *c = *context;
    if (!c)
        return;
    request_forgotten(c);
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    server->n_connections--;
    server->d->metrics.connections--;
    free(c);
    *context = NULL;
}

static void run(struct listener *listener);

/* Streams and terminals end with the token that opened them. */
static void check_tokens(struct server *server)
{
    struct daemon *d = server->d;
    struct cay_error err;
    uint64_t now = cay_wall_ms();
    if (tokens_refresh(d->settings.tokens, &d->tokens, &err) < 0)
        log_event(LOG_WARNING, "the tokens cannot be read again", "error", err.text);
    for (struct connection *c = server->connections; c; c = c->next) {
        if (c->cut || !c->by_token || tokens_hold(d->tokens, c->token, now))
            continue;
        if (c->request)
            request_abandon(c->request);
        connection_cut(c);
    }
}

/* Clients that send their headers a byte at a time, or nothing: the next request does not come. */
static void on_tick(struct timer *timer)
{
    struct server *server = container_of(timer, struct server, tick);
    uint64_t now = cay_now_us();
    for (struct connection *c = server->connections; c; c = c->next)
        if (!c->cut && (c->quiet_since_us ? now - c->quiet_since_us > QUIET_US
                                          : c->request && !request_tick(c->request)))
            connection_cut(c);
    if (++server->ticks % TOKEN_TICKS == 0)
        check_tokens(server);
    /* Out of descriptors, libmicrohttpd stops to accept, and goes on when it is called again. */
    for (size_t i = 0; i < server->n; i++)
        run(&server->listeners[i]);
    timer_set(&server->d->loop, timer, now + TICK_US);
}

/* ---- libmicrohttpd on our loop --------------------------------------------------------------- */

/* Runs what can run, and asks when to look again although nothing came. */
static void run(struct listener *listener)
{
    MHD_UNSIGNED_LONG_LONG ms;
    MHD_run(listener->mhd);
    if (MHD_get_timeout(listener->mhd, &ms) != MHD_YES)
        timer_clear(&listener->server->d->loop, &listener->timer);
    else
        timer_set(&listener->server->d->loop, &listener->timer, cay_now_us() + ms * 1000);
}

/* libmicrohttpd stops to accept when it is out of descriptors, but not if nobody is connected whose
 * end could give it some: then the client that waits would wake us again and again. */
static bool is_short(const struct server *server)
{
    autofd int fd = server->n_connections ? -1 : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return !server->n_connections && fd < 0;
}

static void on_ready(struct watch *watch, uint32_t events)
{
    struct listener *listener = container_of(watch, struct listener, watch);
    struct server *server = listener->server;
    uint64_t before = server->d->metrics.connections_total;
    bool alone = server->n_connections == 0;
    (void)events;
    run(listener);
    if (!alone || server->d->metrics.connections_total != before || !is_short(server))
        return;
    loop_forget(&server->d->loop, watch);
    timer_set(&server->d->loop, &listener->away, cay_now_us() + LOOK_AWAY_US);
}

static void watch_mhd(struct listener *listener)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(listener->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    if (info)
        loop_watch(&listener->server->d->loop, &listener->watch, info->epoll_fd, EPOLLIN);
}

static void on_away_over(struct timer *timer)
{
    watch_mhd(container_of(timer, struct listener, away));
}

static void on_timer(struct timer *timer)
{
    run(container_of(timer, struct listener, timer));
}

static void on_mhd_log(void *cls, const char *format, va_list args)
{
    char text[256];
    (void)cls;
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = 0;
    log_event(LOG_DEBUG, "http", "text", text);
}

static int start_mhd(struct server *server, struct listener *listener, struct cay_error *err)
{
    struct daemon *d = server->d;
    bool tls = !listener->local && d->settings.tls_cert;
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE |
                     MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls_options[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, server->cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, server->key},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
        {MHD_OPTION_END, 0, NULL},
    };
    listener->mhd = MHD_start_daemon(
        flags, 0, NULL, NULL, request_access, listener, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log,
        NULL, MHD_OPTION_LISTEN_SOCKET, listener->fd, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        listener, MHD_OPTION_URI_LOG_CALLBACK, request_begin, d, MHD_OPTION_NOTIFY_COMPLETED,
        request_over, d, MHD_OPTION_CONNECTION_LIMIT, (unsigned)d->settings.connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)STALL_S, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        tls ? MHD_OPTION_ARRAY : MHD_OPTION_END, tls_options, MHD_OPTION_END);
    if (!listener->mhd)
        return cay_fail(err, CAY_E_INTERNAL, "cannot start the HTTP server%s",
                        tls ? "; are tls_cert and tls_key a PEM pair?" : "");
    listener->watch = (struct watch){.fd = -1, .ready = on_ready};
    listener->timer.fire = on_timer;
    listener->away.fire = on_away_over;
    if (!MHD_get_daemon_info(listener->mhd, MHD_DAEMON_INFO_EPOLL_FD))
        return cay_fail(err, CAY_E_INTERNAL, "cannot watch the HTTP server");
    watch_mhd(listener);
    return 0;
}

/* ---- sockets --------------------------------------------------------------------------------- */

static struct listener *add_listener(struct server *server, int fd, bool local)
{
    if (server->n == SERVER_MAX_LISTENERS)
        return NULL;
    struct listener *listener = &server->listeners[server->n++];
    *listener = (struct listener){.server = server, .fd = fd, .local = local};
    listener->watch.fd = -1;
    return listener;
}

/* The socket of that name is ours, as long as it is this one. */
static void own_socket(struct server *server, const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return;
    snprintf(server->socket_path, sizeof(server->socket_path), "%s", path);
    server->socket_dev = st.st_dev;
    server->socket_ino = st.st_ino;
}

static void remove_socket(const struct server *server)
{
    struct stat st;
    if (server->socket_path[0] && lstat(server->socket_path, &st) == 0 &&
        st.st_dev == server->socket_dev && st.st_ino == server->socket_ino)
        unlink(server->socket_path);
}

/* Whether somebody listens there. A daemon that was killed may leave its socket for a moment to a
 * child that is about to become another program. */
static bool is_served(const struct sockaddr_un *address)
{
    for (int i = 0; i < SERVED_TRIES; i++) {
        autofd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 &&
            errno != EAGAIN)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = SERVED_PAUSE_NS}, NULL);
    }
    return true;
}

/* A socket that nobody listens on was left by a daemon that is dead. Anything else is not ours to
 * remove. */
static int make_way(const struct sockaddr_un *address, struct cay_error *err)
{
    const char *path = address->sun_path;
    struct stat st;
    if (lstat(path, &st) < 0) {
        if (errno == ENOENT)
            return 0;
        return cay_fail_errno(err, errno, "cannot look at %s", path);
    }
    if (S_ISSOCK(st.st_mode) && is_served(address))
        return cay_fail(err, CAY_E_CONFLICT,
                        "another program listens on %s; stop it, or give this one another 'listen'",
                        path);
    if (!S_ISSOCK(st.st_mode) || (unlink(path) < 0 && errno != ENOENT))
        return cay_fail(err, CAY_E_CONFLICT, "%s is in the way and is no socket of ours", path);
    return 0;
}

static int listen_unix(struct server *server, const char *path, struct cay_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] != '/' || strlen(path) >= sizeof(address.sun_path))
        return cay_fail(err, CAY_E_INVALID, "the socket '%s' is no absolute path, or too long",
                        path);
    memcpy(address.sun_path, path, strlen(path));
    if (make_way(&address, err) < 0)
        return -1;
    autofd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t old = umask(0177);
    int bound = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&address, sizeof(address));
    umask(old);
    if (bound < 0 || listen(fd, BACKLOG) < 0)
        return cay_fail_errno(err, errno, "cannot listen on %s", path);
    own_socket(server, path);
    if (!add_listener(server, fd, true))
        return cay_fail(err, CAY_E_LIMIT, "more than %d listeners", SERVER_MAX_LISTENERS);
    steal_fd(&fd);
    return 0;
}

/* "127.0.0.1:7733", "[::1]:7733" */
static int parse_address(const char *text, struct sockaddr_storage *out, socklen_t *size,
                         struct cay_error *err)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    char host[64];
    uint64_t port;
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    bool bracket = n > 2 && text[0] == '[' && text[n - 1] == ']';
    memset(out, 0, sizeof(*out));
    if (!colon || n >= sizeof(host) || parse_count(colon + 1, &port, NULL) < 0 || port > 65535)
        return cay_fail(err, CAY_E_INVALID, "tcp '%s' is not ADDRESS:PORT", text);
    snprintf(host, sizeof(host), "%.*s", (int)(bracket ? n - 2 : n), text + bracket);
    if (bracket && inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)port);
        *size = sizeof(*v6);
        return 0;
    }
    if (!bracket && inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        *size = sizeof(*v4);
        return 0;
    }
    return cay_fail(err, CAY_E_INVALID,
                    "tcp '%s': the address must be numeric, such as 127.0.0.1:7733 or [::1]:7733",
                    text);
}

static int listen_tcp(struct server *server, const char *text, struct cay_error *err)
{
    struct sockaddr_storage address;
    socklen_t size = 0;
    int one = 1;
    if (parse_address(text, &address, &size, err) < 0)
        return -1;
    autofd int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        /* Inherited by what is accepted: small answers must not wait for an acknowledgement, and a
         * client whose machine died must be noticed. */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    }
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, BACKLOG) < 0)
        return cay_fail_errno(err, errno, "cannot listen on tcp %s", text);
    if (!add_listener(server, fd, false))
        return cay_fail(err, CAY_E_LIMIT, "more than %d listeners", SERVER_MAX_LISTENERS);
    steal_fd(&fd);
    return 0;
}

/* Sockets from a service manager, or from ourselves before an upgrade. */
static int take_activated(struct server *server, struct cay_error *err)
{
    uint64_t pid = 0, n = 0;
    const char *for_pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    if (!for_pid || !count || parse_count(for_pid, &pid, NULL) < 0 || pid != (uint64_t)getpid() ||
        parse_count(count, &n, NULL) < 0)
        return 0;
    for (int fd = ACTIVATED_FIRST; fd < ACTIVATED_FIRST + (int)CAY_MIN(n, 64u); fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof(address);
        if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
            return cay_fail_errno(err, errno, "descriptor %d of the service manager", fd);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
        bool local = address.ss_family == AF_UNIX;
        struct sockaddr_un *path = (struct sockaddr_un *)&address;
        if (local)
            chmod(path->sun_path, 0600);
        if (!add_listener(server, fd, local))
            return cay_fail(err, CAY_E_LIMIT, "more than %d listeners", SERVER_MAX_LISTENERS);
    }
    const char *own = getenv(SERVER_OWN_SOCKET);
    if (own)
        own_socket(server, own);
    unsetenv(SERVER_OWN_SOCKET);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return (int)server->n;
}

static int open_sockets(struct server *server, struct cay_error *err)
{
    const struct settings *s = &server->d->settings;
    char path[CAY_MAX_PATH];
    int taken = take_activated(server, err);
    if (taken < 0)
        return -1;
    bool has_tcp = false;
    for (size_t i = 0; i < server->n; i++)
        has_tcp = has_tcp || !server->listeners[i].local;
    snprintf(path, sizeof(path), "%s/cayd.sock", server->d->cay->run_path);
    const char *wanted = s->listen ? s->listen : path;
    if (strncmp(wanted, "unix:", 5) == 0)
        wanted += 5;
    /* What was handed over stands for what is configured, each kind for itself. */
    if (taken == 0 && strcmp(wanted, "none") != 0 && listen_unix(server, wanted, err) < 0)
        return -1;
    for (const char *const *tcp = has_tcp ? NULL : s->tcp; tcp && *tcp; tcp++)
        if (listen_tcp(server, *tcp, err) < 0)
            return -1;
    if (server->n == 0)
        return cay_fail(err, CAY_E_INVALID, "nothing to listen on: listen is 'none', tcp not set");
    return 0;
}

static int read_pem(const char *path, char **out, struct cay_error *err)
{
    char *text = path ? malloc(CAY_MAX_CONFIG) : NULL;
    if (!path)
        return 0;
    if (!text || cay_read_file_at(AT_FDCWD, path, text, CAY_MAX_CONFIG) < 0) {
        free(text);
        return cay_fail_errno(err, errno, "cannot read %s", path);
    }
    *out = text;
    return 0;
}

/* "127.0.0.1:7733" of a socket of TCP. `here`: as it is reached from this machine, if it listens
 * on all addresses. */
static bool address_text(int fd, bool here, char out[static 64])
{
    struct sockaddr_storage address;
    socklen_t size = sizeof(address);
    char host[INET6_ADDRSTRLEN] = "";
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        return false;
    if (address.ss_family == AF_INET) {
        if (here && v4->sin_addr.s_addr == htonl(INADDR_ANY))
            v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
        snprintf(out, 64, "%s:%u", host, ntohs(v4->sin_port));
    } else {
        if (here && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
            v6->sin6_addr = in6addr_loopback;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
        snprintf(out, 64, "[%s]:%u", host, ntohs(v6->sin6_port));
    }
    return true;
}

static void tell_address(const struct listener *listener)
{
    struct sockaddr_un address;
    socklen_t size = sizeof(address);
    char where[64], text[160];
    if (listener->local && getsockname(listener->fd, (struct sockaddr *)&address, &size) == 0)
        snprintf(text, sizeof(text), "unix:%s", address.sun_path);
    else if (!listener->local && address_text(listener->fd, false, where))
        snprintf(text, sizeof(text), "tcp:%s", where);
    else
        return;
    log_event(LOG_INFO, "listening", "address", text);
}

bool server_url(const struct server *server, char out[static SERVER_URL])
{
    char where[64];
    for (size_t i = 0; i < server->n; i++) {
        if (server->listeners[i].local || !address_text(server->listeners[i].fd, true, where))
            continue;
        snprintf(out, SERVER_URL, "%s://%s", server->cert ? "https" : "http", where);
        return true;
    }
    out[0] = 0;
    return false;
}

/* ---- life ------------------------------------------------------------------------------------ */

int server_open(struct daemon *d, struct server **out, struct cay_error *err)
{
    const struct settings *s = &d->settings;
    struct server *server = calloc(1, sizeof(*server));
    if (!server)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    server->d = d;
    if ((s->tls_cert != NULL) != (s->tls_key != NULL)) {
        free(server);
        return cay_fail(err, CAY_E_INVALID, "tls_cert and tls_key belong together");
    }
    int result = open_sockets(server, err);
    if (result == 0)
        result = read_pem(s->tls_cert, &server->cert, err);
    if (result == 0)
        result = read_pem(s->tls_key, &server->key, err);
    for (size_t i = 0; result == 0 && i < server->n; i++)
        result = start_mhd(server, &server->listeners[i], err);
    if (result < 0) {
        server_close(server);
        return -1;
    }
    for (size_t i = 0; i < server->n; i++)
        tell_address(&server->listeners[i]);
    server->tick.fire = on_tick;
    timer_set(&d->loop, &server->tick, cay_now_us() + TICK_US);
    *out = server;
    return 0;
}

void server_quiesce(struct server *server, bool successor)
{
    for (size_t i = 0; i < server->n; i++) {
        struct listener *listener = &server->listeners[i];
        if (!listener->mhd || listener->fd < 0)
            continue;
        MHD_run(listener->mhd); /* accepts what has connected already */
        /* The socket is ours again, still listening: clients wait in its backlog for the successor.
         * Without one they must be refused: to a client that means nothing was done, try again. */
        MHD_quiesce_daemon(listener->mhd);
        if (!successor)
            close_fd(&listener->fd);
    }
}

/* A connection that was just made, or just answered, may bring its next request any moment. */
#define JUST_US 50000

bool server_busy(const struct server *server)
{
    uint64_t now = cay_now_us();
    for (const struct connection *c = server->connections; c; c = c->next)
        if (!c->cut && (!c->quiet_since_us || now - c->quiet_since_us < JUST_US))
            return true;
    return false;
}

size_t server_listeners(const struct server *server, int *fds, size_t max, char own[static 108])
{
    size_t n = 0;
    snprintf(own, 108, "%s", server->socket_path);
    for (size_t i = 0; i < server->n && n < max; i++)
        fds[n++] = server->listeners[i].fd;
    return n;
}

/* Streams say why they end, to whoever reads: others are cut. */
static void end_streams(struct server *server)
{
    struct cay_error why;
    uint64_t until = cay_after_ms(LAST_WORDS_MS);
    bool ending;
    int turns = 0;
    cay_fail(&why, CAY_E_UNAVAILABLE,
             "the daemon ends; what runs in sandboxes goes on, and can be followed from where this "
             "stream ends when a daemon serves again");
    for (struct ending *e = server->d->endings, *next; e; e = next) {
        next = e->next;
        e->end(e, &why);
        turns = server->cert ? TLS_TURNS : 0;
    }
    for (struct connection *c = server->connections; c; c = c->next)
        if (c->request && c->request->streaming && c->request->end)
            c->request->end(c->request, &why);
    do {
        ending = false;
        for (size_t i = 0; i < server->n; i++)
            if (server->listeners[i].mhd)
                MHD_run(server->listeners[i].mhd);
        for (struct connection *c = server->connections; c; c = c->next)
            ending = ending || (c->request && c->request->streaming && c->request->end);
        if (ending && turns <= 0)
            nanosleep(&(struct timespec){.tv_nsec = LAST_PAUSE_NS}, NULL);
    } while ((ending || turns-- > 0) && cay_now_us() < until);
}

void server_close(struct server *server)
{
    if (!server)
        return;
    server->d->phase = DAEMON_CLOSING;
    end_streams(server);
    /* libmicrohttpd must not be stopped with connections that sleep. */
    for (struct connection *c = server->connections; c; c = c->next) {
        if (c->request)
            request_abandon(c->request);
        connection_cut(c);
    }
    for (size_t i = 0; i < server->n; i++)
        if (server->listeners[i].mhd)
            MHD_run(server->listeners[i].mhd);
    for (size_t i = 0; i < server->n; i++) {
        struct listener *listener = &server->listeners[i];
        loop_forget(&server->d->loop, &listener->watch);
        timer_clear(&server->d->loop, &listener->timer);
        timer_clear(&server->d->loop, &listener->away);
        if (listener->mhd)
            MHD_stop_daemon(listener->mhd);
    }
    timer_clear(&server->d->loop, &server->tick);
    if (!server->d->upgrade)
        remove_socket(server);
    free(server->cert);
    free(server->key);
    free(server);
}
