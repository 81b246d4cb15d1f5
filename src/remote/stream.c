/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants
 *   - Everything but `thread` belongs to the thread once it runs; the caller sees the socket alone.
 *   - Memory is bounded: output is not taken from the daemon while the caller has not read what is
 *     there, input is not taken from the caller while some is being posted.
 *   - Each byte of input arrives once. Where all input of the process is ours, it is posted with
 * its offset, so that a post whose answer was lost is repeated and the keeper takes only what is
 *     new. Otherwise such a post ends the stream with an error.
 */
#include "remote/stream.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"
#include "remote/frames.h"
#include "remote/json.h"
#include "remote/remote.h"
#include "wire/chan.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Output that waits for the caller: above it none is taken from the daemon. */
#define OUT_ENOUGH (256u << 10)
/* One callback of curl in the smallest frames, each a message, comes on top. */
#define OUT_MAX (2u << 20)
/* Input read at once: a message of the largest size, and what came with it. */
#define INPUT_MAX (2u << 20)
/* Between two attempts. */
#define RETRY_FIRST_US 50000
#define RETRY_MOST_US 500000
/* Input that is still on its way when the caller has closed its end. */
#define LINGER_US 1000000
/* A connection that held this long was one; what comes next is a new loss. */
#define STEADY_US 1000000

/* A lost connection: when to try again, and when to give up. Zeroed: all is well. */
struct retry {
    uint64_t at_us, wait_us, until_us;
};

/* One request that runs beside the other. */
struct leg {
    struct ask ask;
    struct http_run run;
    bool active, paused;
    uint64_t started_us;
    bool advanced;         /* it brought output */
    struct cay_buf answer; /* of a bad one */
    struct retry retry;
};

struct stream {
    pthread_t thread;
    struct http *http;
    CURLM *multi;
    char id[CAY_MAX_ID], pid[REMOTE_PID];
    bool log, follow, sole;
    bool met;              /* the daemon knew it once */
    uint64_t next;         /* offset of the next byte of output; CAY_FROM_KEPT: the oldest */
    uint64_t stall_ms;     /* 0: the daemon's default */
    enum cay_code missing; /* why the bytes before what comes next are not there */

    struct chan chan;   /* our end of the socket pair */
    struct cay_buf out; /* for the caller */
    bool over;          /* what ends the stream is in `out` */
    bool closing;       /* the caller has closed its end */
    bool drained;       /* and nothing is left to be read from it */
    uint64_t closing_us;

    struct leg reader, writer;
    struct frames frames;
    struct cay_error refused; /* an error in the stream that may pass */

    struct cay_buf input;
    uint64_t input_at; /* its offset in all input of the process */
    bool eof;          /* to be posted */
    bool input_ended;  /* the process takes none any more: the rest is dropped */
};

/* ---- to the caller --------------------------------------------------------------------------- */

static void say(struct stream *s, const struct msg *msg)
{
    if (msg_encode(&s->out, msg, 0) < 0)
        s->out.failed = true;
}

static void end_with(struct stream *s, const struct msg *msg)
{
    if (!s->over)
        say(s, msg);
    s->over = true;
}

static void fail(struct stream *s, const struct cay_error *err)
{
    const struct msg msg = {.type = MSG_ERROR,
                            .code = err->code,
                            .sys_errno = (uint64_t)err->sys_errno,
                            .text = err->text};
    end_with(s, &msg);
}

static void flush(struct stream *s)
{
    while (s->out.size) {
        ssize_t n = sock_send(s->chan.sock, s->out.data, s->out.size, NULL, 0);
        if (n < 0 && errno != EAGAIN)
            s->out.size = 0; /* nobody reads any more */
        if (n <= 0)
            return;
        buf_eat(&s->out, (size_t)n);
    }
}

/* ---- retrying -------------------------------------------------------------------------------- */

/* A daemon that has waited for the keeper in vain waits no less the next time. */
static bool may_pass(const struct cay_error *err)
{
    return !http_is_hung(err) && (err->code == CAY_E_UNAVAILABLE || err->code == CAY_E_TIMEOUT);
}

/* False: the time is over. */
static bool try_again(struct retry *retry)
{
    uint64_t now = cay_now_us();
    if (!retry->until_us)
        *retry = (struct retry){.wait_us = RETRY_FIRST_US,
                                .until_us = now + STREAM_PATIENCE_MS * 1000ull};
    retry->at_us = now + retry->wait_us;
    retry->wait_us = CAY_MIN(retry->wait_us * 2, (uint64_t)RETRY_MOST_US);
    return now < retry->until_us;
}

static int start_leg(struct stream *s, struct leg *leg, curl_write_callback on_body)
{
    struct cay_error err;
    CURL *easy = leg->run.easy ? leg->run.easy : curl_easy_init();
    if (!easy || http_prepare(s->http, easy, &leg->ask, &leg->run, &err) < 0) {
        cay_fail(&err, CAY_E_NO_SPACE, "out of memory");
        fail(s, &err);
        return -1;
    }
    leg->answer.size = 0;
    leg->advanced = false;
    leg->paused = false;
    leg->started_us = cay_now_us();
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, s);
    leg->active = curl_multi_add_handle(s->multi, easy) == CURLM_OK;
    return leg->active ? 0 : -1;
}

static void stop_leg(struct stream *s, struct leg *leg)
{
    if (leg->active)
        curl_multi_remove_handle(s->multi, leg->run.easy);
    leg->active = false;
    http_run_done(&leg->run);
    ask_done(&leg->ask);
}

static bool was_steady(const struct leg *leg)
{
    return cay_now_us() - leg->started_us > STEADY_US;
}

static long status_of(const struct leg *leg)
{
    long status = 0;
    curl_easy_getinfo(leg->run.easy, CURLINFO_RESPONSE_CODE, &status);
    return status;
}

static size_t keep_answer(struct leg *leg, const char *bytes, size_t size)
{
    if (leg->answer.size + size <= leg->answer.max)
        buf_add(&leg->answer, bytes, size);
    return size;
}

/* Why a request that is over failed. 0: it did not. */
static int leg_error(const struct leg *leg, CURLcode code, struct cay_error *err)
{
    long status = status_of(leg);
    if (http_is_refusal(status, code, &leg->answer))
        return http_refused(status, leg->answer.data, leg->answer.size, err);
    return code == CURLE_OK ? 0 : http_lost(&leg->run, code, err);
}

/* ---- output ---------------------------------------------------------------------------------- */

static void not_a_stream(struct stream *s)
{
    struct cay_error err;
    cay_fail(&err, CAY_E_INTERNAL, "the daemon's answer is no stream of output");
    fail(s, &err);
}

static void on_exit_event(struct stream *s, uint64_t offset, const json_t *event)
{
    struct cay_exit e;
    if (!json_is_exit(json_object_get(event, "exit"))) {
        not_a_stream(s);
        return;
    }
    json_to_exit(json_object_get(event, "exit"), &e);
    const struct msg msg = {
        .type = MSG_EXIT,
        .pid = (uint64_t)e.pid,
        .offset = offset,
        .code = s->missing,
        .exit_code = (uint64_t)e.exit_code,
        .signal = (uint64_t)e.signal,
        .flags = (e.timed_out ? MSG_F_TIMED_OUT : 0) | (e.oom ? MSG_F_OOM : 0) |
                 (e.truncated ? MSG_F_TRUNCATED : 0),
        .duration_us = e.duration_us,
        .cpu_us = e.cpu_us,
        .peak_memory = e.peak_memory,
        .text = e.reason[0] ? e.reason : NULL,
    };
    end_with(s, &msg);
}

/* What was there when the stream began and is not any more is gone. */
static void note_removed(struct cay_error *err)
{
    if (err->code == CAY_E_NOT_FOUND)
        cay_fail(err, CAY_E_GONE, "the sandbox was removed while its output was read");
}

static void on_error_event(struct stream *s, const json_t *event)
{
    struct cay_error err;
    json_to_error(json_object_get(event, "error"), &err);
    note_removed(&err);
    /* A daemon that goes down says so: it or the next one is asked again. */
    if (err.code == CAY_E_UNAVAILABLE)
        s->refused = err;
    else
        fail(s, &err);
}

static enum cay_code gap_code(const char *bytes, size_t size)
{
    json_t *event = json_parse(bytes, size);
    const char *name = json_string_value(json_object_get(event, "code"));
    enum cay_code code = name ? cay_code_of_name(name) : CAY_OK;
    json_decref(event);
    return code;
}

static int on_frame(enum frames_kind kind, uint64_t offset, const char *bytes, size_t size,
                    void *data)
{
    struct stream *s = data;
    if (kind == FRAMES_STDOUT || kind == FRAMES_STDERR) {
        const struct msg msg = {.type = MSG_OUTPUT,
                                .stream = kind,
                                .offset = offset,
                                .code = s->missing,
                                .data = {bytes, size}};
        s->missing = CAY_OK;
        s->reader.advanced = true;
        say(s, &msg);
        s->next = offset + size;
        return 0;
    }
    if (kind == FRAMES_GAP) {
        s->reader.advanced = true;
        /* The offset of what follows tells the caller how much, and this why. */
        s->missing = gap_code(bytes, size);
        return 0;
    }
    json_t *event = json_parse(bytes, size);
    if (!json_is_object(event))
        not_a_stream(s);
    else if (kind == FRAMES_EXIT)
        on_exit_event(s, offset, event);
    else if (kind == FRAMES_ERROR)
        on_error_event(s, event);
    else
        end_with(s, &(struct msg){.type = MSG_OK, .offset = offset, .code = s->missing});
    json_decref(event);
    return 1;
}

static size_t on_output(char *bytes, size_t size, size_t n, void *data)
{
    struct stream *s = data;
    size_t total = size * n;
    long status = status_of(&s->reader);
    if (status < 200 || status >= 300)
        return keep_answer(&s->reader, bytes, total);
    if (s->out.size > OUT_ENOUGH) {
        s->reader.paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    int fed = frames_feed(&s->frames, bytes, total);
    if (fed < 0 || buf_failed(&s->out)) {
        s->out.failed = false;
        not_a_stream(s);
    }
    return fed == 0 && !s->over ? total : 0;
}

static void start_reader(struct stream *s)
{
    struct leg *leg = &s->reader;
    char stall[24];
    ask_init(&leg->ask, "GET", s->log ? "sandboxes/%/logs" : "sandboxes/%/processes/%/output",
             s->id, s->pid);
    if (s->next != CAY_FROM_KEPT)
        ask_query_num(&leg->ask, "from", s->next);
    ask_query_bool(&leg->ask, "follow", s->follow);
    if (s->stall_ms) {
        snprintf(stall, sizeof(stall), "%llums",
                 (unsigned long long)CAY_MIN(s->stall_ms, (uint64_t)CAY_MAX_STALL_MS));
        ask_query(&leg->ask, "stall", stall);
    }
    leg->ask.accept = FRAMES_TYPE;
    leg->ask.seconds = 0;
    s->refused.code = CAY_OK;
    frames_restart(&s->frames);
    start_leg(s, leg, on_output);
}

static void reader_ended(struct stream *s, CURLcode code)
{
    struct leg *leg = &s->reader;
    struct cay_error err;
    if (s->over)
        return;
    long status = status_of(leg);
    bool good = status >= 200 && status < 300, cut = true;
    s->met = s->met || good;
    if (s->refused.code) {
        err = s->refused;
    } else if (leg_error(leg, code, &err) == 0) {
        cay_fail(&err, CAY_E_UNAVAILABLE, "the daemon ended the stream of output");
        cut = false; /* which a daemon that lives does not do without a word */
    }
    if (leg->advanced || (good && cut && was_steady(leg)))
        leg->retry = (struct retry){0};
    if (s->met)
        note_removed(&err);
    if (!may_pass(&err) || !try_again(&leg->retry))
        fail(s, &err);
}

/* ---- input ----------------------------------------------------------------------------------- */

static size_t on_input_answer(char *bytes, size_t size, size_t n, void *data)
{
    struct stream *s = data;
    return keep_answer(&s->writer, bytes, size * n);
}

static void start_writer(struct stream *s)
{
    struct leg *leg = &s->writer;
    ask_init(&leg->ask, "POST", "sandboxes/%/processes/%/stdin", s->id, s->pid);
    if (s->eof)
        ask_query_bool(&leg->ask, "eof", true);
    if (s->sole)
        ask_query_num(&leg->ask, "offset", s->input_at);
    leg->ask.repeatable = s->sole;
    leg->ask.bytes = s->input.size ? s->input.data : "";
    leg->ask.size = s->input.size;
    leg->ask.seconds = 0; /* as long as the process takes to read it */
    start_leg(s, leg, on_input_answer);
}

/* A post that had a connection for a while was held back by the process: its loss is a new one. */
static bool post_again(struct leg *leg, CURLcode code)
{
    if (code != CURLE_COULDNT_CONNECT && was_steady(leg))
        leg->retry = (struct retry){0};
    return try_again(&leg->retry);
}

static void writer_ended(struct stream *s, CURLcode code)
{
    struct leg *leg = &s->writer;
    struct cay_error err;
    if (leg_error(leg, code, &err) == 0) {
        s->input_ended = s->eof;
        s->input_at += s->input.size;
    } else if (!s->sole && status_of(leg) < 300 && code != CURLE_COULDNT_CONNECT) {
        cay_fail_context(&err, "input may be lost");
        fail(s, &err);
    } else if (may_pass(&err) && post_again(leg, code)) {
        return; /* nothing of it was taken, or it has its offset */
    } else if (err.code == CAY_E_CONFLICT || err.code == CAY_E_NOT_FOUND ||
               err.code == CAY_E_GONE) {
        s->input_ended = true; /* the process is gone or closed it: its exit follows */
    } else {
        cay_fail_context(&err, "input was not taken");
        fail(s, &err);
    }
    leg->retry = (struct retry){0};
    s->input.size = 0;
    s->eof = false;
}

static void take_input(struct stream *s)
{
    struct msg msg;
    struct cay_error err;
    ssize_t n = chan_fill(&s->chan);
    if (n == 0 || (n < 0 && errno != EAGAIN))
        s->drained = s->closing = true;
    int got;
    while ((got = chan_pop(&s->chan, &msg, &err)) > 0) {
        if (msg.type == OP_STDIN && !s->input_ended) {
            if (msg.data.size)
                buf_add(&s->input, msg.data.data, msg.data.size);
            s->eof |= (msg.flags & MSG_F_EOF) != 0;
        }
        msg_done(&msg);
    }
    if (got < 0 || buf_failed(&s->input))
        s->drained = s->closing = true;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool input_waits(const struct stream *s)
{
    return !s->input_ended && (s->input.size || s->eof);
}

static bool wants_input(const struct stream *s)
{
    return !s->drained && !s->writer.active && !input_waits(s);
}

/* The reader was told to wait, and need not any more. */
static bool has_room(const struct stream *s)
{
    return s->reader.paused && s->out.size <= OUT_ENOUGH / 2;
}

static bool finished(const struct stream *s)
{
    if (!s->closing)
        return s->over && s->out.size == 0;
    bool quiet = s->drained && !s->writer.active && !input_waits(s);
    return s->over || quiet || cay_now_us() > s->closing_us + LINGER_US;
}

static void look_at_socket(struct stream *s)
{
    struct pollfd p = {.fd = s->chan.sock, .events = POLLIN | POLLRDHUP};
    if (!s->drained && poll(&p, 1, 0) > 0) {
        if (p.revents & (POLLHUP | POLLRDHUP | POLLERR))
            s->closing = true;
        if (p.revents & POLLIN && wants_input(s))
            take_input(s);
        else if (s->closing && !(p.revents & POLLIN))
            s->drained = true;
    }
    if (s->closing && !s->closing_us)
        s->closing_us = cay_now_us();
}

static void start_what_waits(struct stream *s)
{
    uint64_t now = cay_now_us();
    if (!s->over && !s->closing && !s->reader.active && now >= s->reader.retry.at_us)
        start_reader(s);
    if (!s->over && !s->writer.active && input_waits(s) && now >= s->writer.retry.at_us)
        start_writer(s);
    if (has_room(s)) {
        s->reader.paused = false;
        curl_easy_pause(s->reader.run.easy, CURLPAUSE_CONT);
    }
}

static void take_ends(struct stream *s)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(s->multi, &left));) {
        if (m->msg != CURLMSG_DONE)
            continue;
        bool reader = m->easy_handle == s->reader.run.easy;
        struct leg *leg = reader ? &s->reader : &s->writer;
        CURLcode code = http_whole(&leg->run, m->data.result);
        reader ? reader_ended(s, code) : writer_ended(s, code);
        stop_leg(s, leg);
    }
}

static int patience(const struct stream *s)
{
    uint64_t now = cay_now_us(), next = now + 10000000;
    if (!s->reader.active && s->reader.retry.at_us)
        next = CAY_MIN(next, s->reader.retry.at_us);
    if (!s->writer.active && input_waits(s) && s->writer.retry.at_us)
        next = CAY_MIN(next, s->writer.retry.at_us);
    if (has_room(s) || (s->closing && wants_input(s)))
        return 0; /* there is something to do that no descriptor tells of */
    if (s->closing)
        next = CAY_MIN(next, s->closing_us + LINGER_US);
    return next > now ? (int)((next - now) / 1000) + 1 : 0;
}

static void wait_for_more(struct stream *s)
{
    struct curl_waitfd fd = {
        .fd = s->chan.sock,
        .events = (short)((wants_input(s) ? CURL_WAIT_POLLIN : 0) |
                          (s->out.size ? CURL_WAIT_POLLOUT : 0)),
    };
    /* A hang-up is reported whether it is asked for or not, and was seen already. */
    bool look = !s->closing;
    curl_multi_poll(s->multi, look ? &fd : NULL, look, patience(s), NULL);
}

static void *run(void *data)
{
    struct stream *s = data;
    int running;
    for (;;) {
        look_at_socket(s);
        start_what_waits(s);
        curl_multi_perform(s->multi, &running);
        take_ends(s);
        flush(s);
        if (finished(s))
            break;
        wait_for_more(s);
    }
    shutdown(s->chan.sock, SHUT_RDWR);
    return NULL;
}

/* ---- from outside ---------------------------------------------------------------------------- */

static void free_leg(struct stream *s, struct leg *leg)
{
    stop_leg(s, leg);
    if (leg->run.easy)
        curl_easy_cleanup(leg->run.easy);
    buf_done(&leg->answer);
}

static void free_stream(struct stream *s)
{
    free_leg(s, &s->reader);
    free_leg(s, &s->writer);
    if (s->multi)
        curl_multi_cleanup(s->multi);
    frames_done(&s->frames);
    buf_done(&s->input);
    buf_done(&s->out);
    chan_done(&s->chan);
    free(s);
}

/* Signals are the caller's business: none reaches the thread. */
static int start_thread(struct stream *s)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int eno = pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return eno;
}

int stream_open(struct http *http, const char *id, const struct stream_of *of, struct stream **out,
                int *sock, struct cay_error *err)
{
    int pair[2];
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (sock_pair(pair) < 0) {
        free(s);
        return cay_fail_errno(err, errno, "cannot make a socket pair");
    }
    autofd int theirs = pair[1];
    s->http = http;
    s->log = of->pid == 0;
    s->follow = of->follow;
    s->sole = of->sole;
    s->next = of->from;
    s->stall_ms = of->stall_ms;
    s->out = CAY_BUF(OUT_MAX);
    s->input = CAY_BUF(INPUT_MAX);
    s->reader.answer = s->writer.answer = CAY_BUF(HTTP_MAX_ERROR);
    snprintf(s->id, sizeof(s->id), "%s", id);
    pid_text(of->pid, s->pid);
    chan_init(&s->chan, pair[0]);
    frames_init(&s->frames, on_frame, s);
    s->multi = curl_multi_init();
    int eno = !s->multi || fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 ? ENOMEM : start_thread(s);
    if (eno) {
        free_stream(s);
        return cay_fail_errno(err, eno, "cannot start a thread");
    }
    *out = s;
    *sock = steal_fd(&theirs);
    return 0;
}

void stream_close(struct stream *stream)
{
    if (!stream)
        return;
    pthread_join(stream->thread, NULL);
    free_stream(stream);
}
