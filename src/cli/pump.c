/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: standard input is only read when the connection to the keeper has room for it, so
 * that a process which does not read never keeps us from printing and from signals. Signals come by
 * descriptor: there is no handler and no global state.
 */
#include "cli/pump.h"

#include "cli/cli.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>

/* Read at once from standard input: below what a socket has free when it says that
 * it is writable. */
#define INPUT_CHUNK (32u << 10)
/* After this long without anything to do: is the keeper still there? */
#define QUIET_MS 50000

struct state {
    struct pump *pump;
    struct cay_exit *exit;
    struct cay_error *err;
    bool input_open;
    size_t pending; /* bytes of `chunk` that wait for room */
    unsigned signals_seen;
    char *chunk;    /* owned; made when there is input */
    size_t matched; /* of the keys that leave it, held back */
};

/* Not yet at an end. */
#define GO_ON (-1)

int pump_signals(struct cay_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGQUIT);
    sigaddset(&set, SIGWINCH);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd < 0)
        return cay_fail_errno(err, errno, "cannot watch signals");
    /* Blocked but not read: writing to a closed pipe is then an error like any other. */
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return fd;
}

void pump_window(uint16_t *rows, uint16_t *cols)
{
    struct winsize size = {0};
    for (int fd = 0; fd <= 2; fd++)
        if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col) {
            *rows = size.ws_row;
            *cols = size.ws_col;
            return;
        }
    *rows = 24;
    *cols = 80;
}

/* "ctrl-p" or "a": a key; 0: neither. */
static unsigned char parse_key_name(const char *name, size_t size)
{
    static const char prefix[] = "ctrl-";
    size_t n = sizeof(prefix) - 1;
    if (size == 1)
        return (unsigned char)name[0];
    if (size != n + 1 || strncmp(name, prefix, n) != 0)
        return 0;
    if (name[n] >= 'a' && name[n] <= 'z')
        return (unsigned char)(name[n] - 'a' + 1);
    return strchr("[\\]^_", name[n]) ? (unsigned char)(name[n] - '@') : 0;
}

int pump_keys(const char *text, struct pump *pump, struct cay_error *err)
{
    size_t n = 0;
    bool end = strcmp(text, "none") == 0;
    for (const char *p = text; !end; p += strcspn(p, ",") + 1) {
        size_t size = strcspn(p, ",");
        unsigned char key = parse_key_name(p, size);
        if (!key || n == PUMP_MAX_KEYS)
            return cay_fail(err, CAY_E_INVALID,
                            "bad keys '%.64s': expected up to %d of ctrl-a to ctrl-z and single "
                            "characters, with commas between them, or none",
                            text, PUMP_MAX_KEYS);
        pump->keys[n++] = key;
        end = !p[size];
    }
    pump->n_keys = n;
    return 0;
}

static int on_output(struct state *s, const struct cay_event *event)
{
    size_t stream = event->stream == 2;
    struct cay_buf *buf = s->pump->out[stream];
    if (!s->pump->started)
        s->pump->start = event->offset;
    s->pump->started = true;
    if (buf) {
        if (buf_add(buf, event->data, event->size) == 0)
            return GO_ON;
        cay_fail(s->err, CAY_E_TOO_LARGE,
                 "the command printed more than the %zu bytes that fit into one result; without "
                 "--json its output is passed on as it comes",
                 buf->max);
        return PUMP_TOO_LARGE;
    }
    int fd = stream ? STDERR_FILENO : STDOUT_FILENO;
    if (cli_write(fd, event->data, event->size) == 0)
        return GO_ON;
    if (errno == EPIPE)
        return PUMP_PIPE;
    cli_not_written(fd, errno, s->err);
    return PUMP_FAILED;
}

/* All events that are there; with timeout -1 all that will ever be. */
static int on_events(struct state *s, int timeout)
{
    for (;;) {
        struct cay_event event;
        int n = cay_proc_next(s->pump->proc, timeout, &event, s->err);
        if (n < 0)
            return PUMP_FAILED;
        if (n == 0)
            return timeout < 0 ? (int)PUMP_DONE : GO_ON;
        if (event.kind == CAY_EVENT_EXIT) {
            *s->exit = event.exit;
            if (!s->pump->started) { /* nothing of what it printed is kept */
                s->pump->start = event.offset;
                s->pump->why = event.why ? event.why : s->pump->why;
            }
            return PUMP_EXIT;
        }
        if (event.kind == CAY_EVENT_GAP)
            s->pump->lost += event.size;
        if (event.why && s->pump->why != CAY_E_NO_SPACE)
            s->pump->why = event.why;
        int end = event.kind == CAY_EVENT_OUTPUT ? on_output(s, &event) : GO_ON;
        if (end != GO_ON)
            return end;
    }
}

/* What a terminal would do: interrupts reach all of the command, the rest its main process. */
static int pass_signal(struct state *s, int signal)
{
    struct pump *pump = s->pump;
    bool again = s->signals_seen++ > 0;
    if (!pump->own) {
        *s->exit = (struct cay_exit){.signal = signal};
        return PUMP_SIGNAL;
    }
    bool tree = again || signal != SIGTERM;
    if (cay_signal(pump->sandbox, cay_proc_pid(pump->proc), again ? SIGKILL : signal, tree,
                   s->err) == 0)
        return GO_ON;
    /* It may just have ended, and its exit be on the way; a second signal is a wish to leave in any
     * case. */
    *s->exit = (struct cay_exit){.signal = signal};
    return again ? (int)PUMP_SIGNAL : GO_ON;
}

static int on_signals(struct state *s)
{
    struct signalfd_siginfo info;
    while (read(s->pump->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGWINCH) {
            uint16_t rows, cols;
            pump_window(&rows, &cols);
            if (s->pump->tty)
                cay_proc_resize(s->pump->proc, rows, cols, NULL);
            continue;
        }
        int end = pass_signal(s, (int)info.ssi_signo);
        if (end != GO_ON)
            return end;
    }
    return GO_ON;
}

/* A process that is gone or closed its input is no error: its exit follows. */
static void send_input(struct state *s)
{
    if (cay_proc_write(s->pump->proc, s->chunk, s->pending, NULL) < 0)
        s->input_open = false;
    s->pending = 0;
}

/*
 * Looks for the keys in what was just read behind the ones that were held back; those are not sent
 * before it is clear that something else follows. What is to be sent moves to the front.
 */
static int find_keys(struct state *s, const char *at, size_t n)
{
    const struct pump *pump = s->pump;
    char *out = s->chunk;
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)at[i];
        if (c != pump->keys[s->matched] && s->matched) {
            /* Never ahead of `at`: what goes out was read before. */
            memcpy(out + size, pump->keys, s->matched);
            size += s->matched;
            s->matched = 0;
        }
        if (c != pump->keys[s->matched]) {
            out[size++] = (char)c;
        } else if (++s->matched == pump->n_keys) {
            s->pending = size;
            if (size)
                send_input(s);
            return PUMP_DETACHED;
        }
    }
    s->pending = size;
    return GO_ON;
}

/* What cannot be read is not the end of it: the process must not take a part for the whole. */
static int read_input(struct state *s)
{
    if (!s->chunk && !(s->chunk = malloc(INPUT_CHUNK + PUMP_MAX_KEYS))) {
        cay_fail(s->err, CAY_E_NO_SPACE, "out of memory");
        return PUMP_FAILED;
    }
    char *at = s->chunk + s->matched; /* room for what is held back */
    ssize_t n = read(STDIN_FILENO, at, INPUT_CHUNK);
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
        cay_fail_errno(s->err, errno, "cannot read standard input");
        return PUMP_FAILED;
    }
    if (n > 0 && s->pump->n_keys && s->pump->tty)
        return find_keys(s, at, (size_t)n);
    if (n > 0)
        s->pending = (size_t)n;
    if (n != 0)
        return GO_ON;
    s->input_open = false;
    cay_proc_close_stdin(s->pump->proc, NULL);
    return GO_ON;
}

static int loop(struct state *s)
{
    struct pump *pump = s->pump;
    if (pump->signals < 0 && !pump->input)
        return on_events(s, -1);
    int end = on_events(s, 0); /* what came with the answer to the start is not seen by poll */
    while (end == GO_ON) {
        bool reading = s->input_open && s->pending == 0;
        struct pollfd fds[] = {
            {.fd = cay_proc_fd(pump->proc), .events = (short)(POLLIN | (s->pending ? POLLOUT : 0))},
            {.fd = pump->signals, .events = POLLIN},
            {.fd = reading ? STDIN_FILENO : -1, .events = POLLIN},
        };
        int ready = poll(fds, CAY_COUNT(fds), QUIET_MS);
        if (ready < 0 && errno != EINTR) {
            cay_fail_errno(s->err, errno, "cannot wait for output");
            return PUMP_FAILED;
        }
        if (ready == 0 && cay_proc_check(pump->proc, s->err) < 0)
            return PUMP_FAILED;
        if (fds[0].revents & ~POLLOUT)
            end = on_events(s, 0);
        if (end == GO_ON && fds[1].revents)
            end = on_signals(s);
        if (end == GO_ON && s->pending && fds[0].revents & POLLOUT)
            send_input(s);
        if (end == GO_ON && fds[2].revents)
            end = read_input(s);
    }
    return end;
}

enum pump_end pump_run(struct pump *pump, struct cay_exit *exit, struct cay_error *err)
{
    struct state s = {.pump = pump, .exit = exit, .err = err, .input_open = pump->input};
    struct termios saved;
    bool raw = pump->tty && pump->input && tcgetattr(STDIN_FILENO, &saved) == 0;
    if (raw) {
        struct termios changed = saved;
        cfmakeraw(&changed);
        tcsetattr(STDIN_FILENO, TCSADRAIN, &changed);
    }
    int end = loop(&s);
    if (raw)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
    free(s.chunk);
    return (enum pump_end)end;
}
