/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cayd: start, signals, end.
 *
 *   SIGTERM, SIGINT  drain: no new requests, running ones may end; then exit
 *   SIGHUP           read tokens and policy again
 *   SIGUSR2          upgrade: drain, then execute the program anew with the same listeners
 */
#include "base/err.h"
#include "base/limits.h"
#include "base/opt.h"
#include "base/util.h"
#include "daemon/drop.h"
#include "daemon/jobs.h"
#include "daemon/journal.h"
#include "daemon/log.h"
#include "daemon/man.h"
#include "daemon/pool.h"
#include "daemon/recount.h"
#include "daemon/remains.h"
#include "daemon/resolve.h"
#include "daemon/roster.h"
#include "daemon/routes.h"
#include "daemon/server.h"
#include "daemon/token_cmd.h"
#include "daemon/upgrade.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#define EXIT_ERROR 125
#define LOCK_TRIES 30
#define DYING_TRIES 1500
#define RUN_TRIES 100
#define LOCK_PAUSE_NS 10000000
/* While draining: are they done? */
#define DRAIN_LOOK_US 20000

struct options {
    const char *config, *state_dir, *run_dir;
    bool help, version, routes, check, man, man_conf;
};

static const struct opt options[] = {
    OPT("config", 'c', OPT_STR, offsetof(struct options, config), "FILE",
        "config file; default: /etc/cay/cayd.conf"),
    OPT("state-dir", 0, OPT_STR, offsetof(struct options, state_dir), "DIR", "as for cay"),
    OPT("run-dir", 0, OPT_STR, offsetof(struct options, run_dir), "DIR", "as for cay"),
    OPT("check", 0, OPT_FLAG, offsetof(struct options, check), NULL,
        "read config, tokens and policy, say what is wrong, and end"),
    OPT("routes", 0, OPT_FLAG, offsetof(struct options, routes), NULL, "print the routes"),
    OPT("man", 0, OPT_FLAG, offsetof(struct options, man), NULL, "print the manual page"),
    OPT("man-conf", 0, OPT_FLAG, offsetof(struct options, man_conf), NULL,
        "print the manual page of the config file"),
    OPT("version", 0, OPT_FLAG, offsetof(struct options, version), NULL, "print the version"),
    OPT("help", 'h', OPT_FLAG, offsetof(struct options, help), NULL, "print this"),
};

struct signals {
    struct daemon *d;
    int fd;
    struct watch watch;
    struct upgrade upgrade;
};

/* ---- rules ----------------------------------------------------------------------------------- */

static int load_rules(struct daemon *d, struct cay_error *err)
{
    struct tokens *tokens = NULL;
    struct operator_policy *policy = NULL;
    if (tokens_load(d->settings.tokens, &tokens, err) < 0)
        return -1;
    if (operator_load(d->settings.policy, &policy, err) < 0) {
        tokens_free(tokens);
        return -1;
    }
    tokens_free(d->tokens);
    operator_free(d->policy);
    d->tokens = tokens;
    d->policy = policy;
    return 0;
}

static void reload(struct daemon *d)
{
    struct cay_error err;
    if (load_rules(d, &err) < 0) {
        log_event(LOG_ERROR, "reload failed, the old rules stay", "error", err.text);
        return;
    }
    journal_engine(d, AUDIT_RELOAD, NULL, NULL, NULL);
    log_event(LOG_INFO, "reloaded");
}

/* ---- the end --------------------------------------------------------------------------------- */

static void on_drain(struct timer *timer)
{
    struct daemon *d = container_of(timer, struct daemon, drain_timer);
    uint64_t now = cay_now_us();
    if (!server_busy(d->server) || now >= d->drain_until_us) {
        d->loop.stop = true;
        return;
    }
    timer_set(&d->loop, timer, now + DRAIN_LOOK_US);
}

static void drain(struct daemon *d, bool upgrade)
{
    if (d->phase == DAEMON_DRAINING) {
        if (!d->upgrade || upgrade) {
            d->loop.stop = d->loop.stop || !upgrade; /* asked twice: at once */
            return;
        }
        d->upgrade = false; /* SIGTERM while it upgrades: it ends, after the same drain */
        server_quiesce(d->server, false);
        return;
    }
    log_event(LOG_INFO, upgrade ? "upgrading" : "draining");
    d->phase = DAEMON_DRAINING;
    d->upgrade = upgrade;
    d->drain_until_us = cay_after_ms(d->settings.drain_ms);
    server_quiesce(d->server, upgrade);
    d->drain_timer.fire = on_drain;
    timer_set(&d->loop, &d->drain_timer, 0);
}

static void drain_to_upgrade(struct daemon *d)
{
    drain(d, true);
}

static void on_signal(struct watch *watch, uint32_t events)
{
    struct signals *signals = container_of(watch, struct signals, watch);
    struct signalfd_siginfo info;
    (void)events;
    if (read(watch->fd, &info, sizeof(info)) != sizeof(info))
        return;
    switch (info.ssi_signo) {
    case SIGHUP:
        reload(signals->d);
        break;
    case SIGUSR2:
        upgrade_try(&signals->upgrade); /* before anybody is sent away for it */
        break;
    default:
        drain(signals->d, false);
    }
}

/* They wait until the loop serves: before that there is nothing to drain, and one that comes while
 * an upgrade starts is for the new daemon. */
static void block_signals(sigset_t *set)
{
    static const int wanted[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};
    sigemptyset(set);
    for (size_t i = 0; i < CAY_COUNT(wanted); i++)
        sigaddset(set, wanted[i]);
    sigprocmask(SIG_SETMASK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static int take_signals(struct daemon *d, struct signals *signals, struct cay_error *err)
{
    sigset_t set;
    block_signals(&set);
    signals->d = d;
    signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    signals->watch = (struct watch){.fd = -1, .ready = on_signal};
    return signals->fd < 0 ? cay_fail_errno(err, errno, "cannot take signals") : 0;
}

/* ---- the start ------------------------------------------------------------------------------- */

/* Whether who holds the lock is on its way out: gone but for a child that is about to become a
 * keeper, or killed and still waiting for the disk in some thread. */
static bool is_dying(int lock)
{
    char text[2048], path[64];
    int pid = 0;
    ssize_t n = pread(lock, text, 15, 0);
    text[CAY_MAX(n, 0)] = 0;
    if (sscanf(text, "%d", &pid) != 1)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    if (cay_read_file_at(AT_FDCWD, path, text, sizeof(text)) < 0)
        return true;
    const char *state = strstr(text, "\nState:\t");
    const char *own = strstr(text, "\nSigPnd:\t"), *shared = strstr(text, "\nShdPnd:\t");
    unsigned long long kill = 1ull << (SIGKILL - 1);
    return (state && strchr("ZX", state[8])) || (own && (strtoull(own + 9, NULL, 16) & kill)) ||
           (shared && (strtoull(shared + 9, NULL, 16) & kill));
}

/* Two daemons on one state directory would each keep half of the quotas. The lock belongs to the
 * open file, goes with the process, and survives an upgrade. */
static int lock_state(struct daemon *d, int *lock, struct cay_error *err)
{
    char path[CAY_MAX_PATH];
    snprintf(path, sizeof(path), "%s/cayd.lock", d->cay->state_path);
    autofd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot open %s", path);
    int locked = status_lock(fd);
    for (int i = 0; locked < 0 && i < (is_dying(fd) ? DYING_TRIES : LOCK_TRIES); i++) {
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        locked = status_lock(fd);
    }
    if (locked < 0)
        return cay_fail(
            err, CAY_E_CONFLICT,
            "another cayd serves %s; stop it, or give this one a --state-dir of its own",
            d->cay->state_path);
    /* Who we are is for who waits for us to be gone; a full disk is no reason not to start. */
    char text[16];
    int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) != n)
        log_event(LOG_WARNING, "cannot write the lock file", "path", path);
    *lock = steal_fd(&fd);
    return 0;
}

/* Nor may two share a run directory: the sandboxes of both are in it, and the socket. */
static int lock_run(struct daemon *d, int *lock, struct cay_error *err)
{
    autofd int fd = openat(d->cay->run, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot open %s", d->cay->run_path);
    int locked = flock(fd, LOCK_EX | LOCK_NB);
    for (int i = 0; locked < 0 && errno == EWOULDBLOCK && i < RUN_TRIES; i++) {
        nanosleep(&(struct timespec){.tv_nsec = LOCK_PAUSE_NS}, NULL);
        locked = flock(fd, LOCK_EX | LOCK_NB);
    }
    if (locked < 0 && errno == EWOULDBLOCK)
        return cay_fail(err, CAY_E_CONFLICT,
                        "another cayd, with another state directory, serves %s; stop it, or give "
                        "this one a --run-dir of its own",
                        d->cay->run_path);
    if (locked < 0)
        return cay_fail_errno(err, errno, "cannot lock %s", d->cay->run_path);
    *lock = steal_fd(&fd);
    return 0;
}

/* Each client, and each call to a keeper for it, takes a descriptor. */
static void raise_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* systemd's way of being told; nothing if it does not listen. */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || !*path || strlen(path) >= sizeof(address.sun_path))
        return;
    memcpy(address.sun_path, path, strlen(path));
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (path[0] == '@')
        address.sun_path[0] = 0;
    autofd int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock >= 0 &&
        sendto(sock, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, size) < 0)
        return;
}

static int open_parts(struct daemon *d, struct cay_error *err)
{
    if (load_rules(d, err) < 0 || jobs_new(&d->loop, &d->jobs, err) < 0 ||
        journal_open(d, &d->journal, err) < 0 || roster_open(d, &d->roster, err) < 0 ||
        remains_open(d, &d->remains, err) < 0 || recount(d, err) < 0 ||
        pool_open(d, &d->pool, err) < 0 || server_open(d, &d->server, err) < 0)
        return -1;
    return 0;
}

static void close_parts(struct daemon *d)
{
    server_close(d->server);
    jobs_free(d->jobs); /* what workers are at comes to its end, while all it needs is there */
    pool_close(d->pool);
    remains_close(d->remains);
    roster_close(d->roster);
    journal_close(d->journal);
    tokens_free(d->tokens);
    operator_free(d->policy);
}

static int serve(struct daemon *d, char **argv, struct cay_error *err)
{
    static struct signals signals;
    int fds[SERVER_MAX_LISTENERS];
    autofd int lock = -1, run_lock = -1;
    int result = lock_state(d, &lock, err);
    if (result == 0)
        result = lock_run(d, &run_lock, err);
    upgrade_init(&signals.upgrade, d, argv, drain_to_upgrade);
    if (result == 0)
        result = take_signals(d, &signals, err);
    if (result == 0)
        result = open_parts(d, err);
    if (result == 0)
        loop_watch(&d->loop, &signals.watch, signals.fd, EPOLLIN);
    if (result == 0) {
        d->phase = DAEMON_SERVING;
        journal_engine(d, AUDIT_STARTED, NULL, NULL, NULL);
        log_event(LOG_INFO, "ready", "version", cay_version());
        notify("READY=1");
        result = loop_run(&d->loop);
        if (result < 0)
            cay_fail_errno(err, errno, "the event loop failed");
        notify(d->upgrade ? "RELOADING=1" : "STOPPING=1");
        journal_engine(d, AUDIT_STOPPED, NULL, NULL, NULL);
        log_event(LOG_INFO, "ended");
    }
    upgrade_done(&signals.upgrade);
    char own[108] = "";
    size_t n = d->upgrade ? server_listeners(d->server, fds, SERVER_MAX_LISTENERS, own) : 0;
    close_parts(d);
    if (n > 0) {
        close_fd(&lock);
        close_fd(&run_lock);
        upgrade_go(&signals.upgrade, fds, n, own);
        result = cay_fail_errno(err, errno, "cannot execute %s", signals.upgrade.program);
    }
    return result;
}

static void print_help(void)
{
    printf("cayd: sandboxes over HTTP\n\n"
           "Usage: cayd [OPTIONS]\n"
           "       cayd token add|ls|rm ...    tokens of clients; see 'cayd token'\n\n");
    for (size_t i = 0; i < CAY_COUNT(options); i++)
        printf("  --%-10s %-6s %s\n", options[i].name, options[i].metavar ? options[i].metavar : "",
               options[i].help);
    printf("\nSettings of %s, section [cayd]:\n", "/etc/cay/cayd.conf");
    for (size_t i = 0; i < settings_options_count; i++)
        printf("  %-12s %-14s %s\n", settings_options[i].name,
               settings_options[i].metavar ? settings_options[i].metavar : "",
               settings_options[i].help);
}

static int run(const struct options *o, char **argv, struct cay_error *err)
{
    static struct daemon daemon; /* too large for a stack */
    struct daemon *d = &daemon;
    d->started_us = cay_now_us();
    if (settings_load(o->config, &d->settings, err) < 0)
        return -1;
    if (o->check) {
        if (load_rules(d, err) < 0)
            return -1;
        printf("config, tokens and policy are fine\n");
        return 0;
    }
    if (o->state_dir)
        setenv("CAY_STATE_DIR", o->state_dir, 1);
    if (o->run_dir)
        setenv("CAY_RUN_DIR", o->run_dir, 1);
    sigset_t set;
    block_signals(&set);
    raise_files();
    if (drop_rights(err) < 0 || cay_open(NULL, &d->cay, err) < 0)
        return -1;
    struct cay looker = *d->cay; /* borrows its directories */
    looker.looks = true;
    d->looker = &looker;
    int result = loop_init(&d->loop) < 0 ? cay_fail_errno(err, errno, "cannot make an event loop")
                                         : serve(d, argv, err);
    loop_done(&d->loop);
    cay_close(d->cay);
    settings_done(&d->settings);
    return result;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct opt_args args;
    struct cay_error err;
    autoarena struct opt_arena arena = {0};
    autobuf struct cay_buf text = CAY_BUF(64u << 10);
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit is an error of the write (EFBIG) */
    if (argc > 1 && strcmp(argv[1], "token") == 0)
        return token_command(argc - 1, argv + 1);
    /* Parsing moves entries about; an upgrade needs them as they were. */
    char **copy = calloc((size_t)argc + 1, sizeof(*copy));
    if (!copy)
        return EXIT_ERROR;
    memcpy(copy, argv, (size_t)argc * sizeof(*copy));
    const struct opt_group groups[] = {{options, CAY_COUNT(options), &o}, {0}};
    int result = opt_parse(&arena, groups, argv + 1, SIZE_MAX, &args, &err);
    if (result == 0 && args.n > 0)
        result = cay_fail(&err, CAY_E_INVALID, "unexpected argument '%.64s'; see cayd --help",
                          args.operands[0]);
    if (result == 0 && o.help) {
        print_help();
    } else if (result == 0 && o.version) {
        printf("cayd %s\n", cay_version());
    } else if (result == 0 && (o.routes || o.man || o.man_conf)) {
        if (o.man)
            man_daemon(options, CAY_COUNT(options), &text);
        else if (o.man_conf)
            man_settings(&text);
        else
            routes_print(&text);
        fwrite(text.data, 1, text.size, stdout);
    } else if (result == 0) {
        result = run(&o, copy, &err);
    }
    free(copy);
    if (result == 0)
        return 0;
    fprintf(stderr, "cayd: %s\n", err.text);
    return EXIT_ERROR;
}
