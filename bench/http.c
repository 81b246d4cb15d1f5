/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times requests over HTTP/1.1 on a unix socket, with connections that stay, so that neither an
 * interpreter nor a library is in the figures.
 *
 *   http [OPTIONS] SOCKET REQUEST... [-- CMD [ARG...]]
 *
 * REQUEST is "METHOD PATH [JSON]", sent as it is; {id} in a path is the "id" of the connection's
 * last answer that had one. All requests in order are a turn. bench/daemon.py runs it.
 *
 *   --clients N   connections at once, each in a closed loop; 1
 *   --rounds N    turns, all clients together; 100
 *   --warmup N    turns before those that count; 0
 *   --timed N     the first N requests of a turn are what its time is; 0: all
 *   --pause MS    after each turn; 0
 *   --pool N      after each turn, until the daemon has N sandboxes ready (5 s at most); a turn
 *                 that the pool did not serve counts as "cold", not as "turn"
 *   --at-once 1   times are from the common start of all clients
 *
 * CMD is started before each turn and timed beside it (from vfork to the end of waitpid). Output as
 * spawn prints it: LABEL TAB ok TAB n,...; "command", "turn", "cold", "request 1"...: nanoseconds;
 * "took": from first to last; "refused CODE", "status N", "closed", "broken": how often. An error
 * whose body has no code of the API's is "broken".
 */
#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_STEPS 8
#define MAX_CLIENTS 4096
#define MAX_ROUNDS 100000000
#define MAX_CODES 32
#define IN_SIZE 65536
#define OUT_SIZE 8192
#define POOL_MS 5000

struct step {
    const char *method, *path, *body;
};

struct client {
    int fd;
    size_t step;
    bool kept; /* this turn counts */
    uint64_t turn_start, step_start, turn_end;
    char id[128];
    char *in;
    size_t n_in;
};

struct series {
    char label[32];
    uint64_t *samples;
    size_t n, room;
};

struct bench {
    long n_clients, rounds, warmup, timed, pause_ms, pool, at_once;
    struct sockaddr_un address;
    struct step steps[MAX_STEPS];
    size_t n_steps;
    char **command;
    struct client *clients;
    struct series command_times, turns, cold, step_times[MAX_STEPS], took;
    struct series counts[MAX_CODES];
    size_t n_counts;
    long started, ended; /* turns */
    uint64_t start;
};

struct answer {
    int status;
    const char *body;
    size_t body_size, whole;
    bool close;
};

extern char **environ;

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench-http: %s: %s\n", what, strerror(errno));
    exit(125);
}

static void *memory(void *old, size_t size)
{
    void *p = realloc(old, size);

    if (!p)
        die("memory");
    return p;
}

/* ---- figures --------------------------------------------------------------------------------- */

static void add_sample(struct series *series, uint64_t value)
{
    if (series->n == series->room) {
        series->room = series->room ? 2 * series->room : 1024;
        series->samples = memory(series->samples, series->room * sizeof *series->samples);
    }
    series->samples[series->n++] = value;
}

static void count(struct bench *bench, const char *what, const char *name)
{
    char label[32];
    size_t i = 0;

    snprintf(label, sizeof label, "%s%s%s", what, *name ? " " : "", name);
    while (i < bench->n_counts && strcmp(bench->counts[i].label, label) != 0)
        i++;
    if (i == MAX_CODES)
        return;
    if (i == bench->n_counts) {
        memcpy(bench->counts[i].label, label, sizeof label);
        add_sample(&bench->counts[i], 0);
        bench->n_counts++;
    }
    bench->counts[i].samples[0]++;
}

static void print_series(const struct series *series)
{
    printf("%s\tok\t", series->label);
    for (size_t i = 0; i < series->n; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)series->samples[i]);
    printf("\n");
}

/* ---- HTTP ------------------------------------------------------------------------------------ */

static int dial(const struct bench *bench)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (const struct sockaddr *)&bench->address, sizeof bench->address) < 0)
        die(bench->address.sun_path);
    return fd;
}

static void send_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return; /* the end is read from it, too */
        data += n;
        size -= (size_t)n;
    }
}

static void send_request(const struct step *step, const char *id, int fd)
{
    char out[OUT_SIZE], path[1024];
    const char *mark = strstr(step->path, "{id}");
    int n;

    if (mark)
        snprintf(path, sizeof path, "%.*s%s%s", (int)(mark - step->path), step->path, id, mark + 4);
    else
        snprintf(path, sizeof path, "%s", step->path);
    if (step->body)
        n = snprintf(out, sizeof out,
                     "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     step->method, path, strlen(step->body), step->body);
    else
        n = snprintf(out, sizeof out, "%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n", step->method,
                     path);
    if (n < 0 || (size_t)n >= sizeof out) {
        errno = EMSGSIZE;
        die(step->path);
    }
    send_all(fd, out, (size_t)n);
}

/* The value of a header in a head that ends with a 0, or NULL. */
static const char *header(const char *head, const char *name)
{
    size_t n = strlen(name);

    for (const char *line = head; (line = strstr(line, "\r\n")); line += 2)
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':')
            return line + 3 + n + strspn(line + 3 + n, " ");
    return NULL;
}

/* Length of a chunked body with its frame; 0: not all there. The pieces stay where they are: who
 * looks into such a body finds the first one. */
static size_t chunked_size(const char *body, size_t size, size_t *first)
{
    size_t at = 0;

    for (*first = 0;;) {
        char *end;
        const char *line = memchr(body + at, '\n', size - at);
        if (!line)
            return 0;
        size_t chunk = strtoul(body + at, &end, 16);
        if (end == body + at)
            return 0;
        at = (size_t)(line - body) + 1;
        if (!*first)
            *first = at;
        if (chunk > size - at || size - at - chunk < 2)
            return 0;
        at += chunk + 2;
        if (chunk == 0)
            return at;
    }
}

/* True when a whole answer stands at the beginning of what was received. */
static bool parse_answer(char *in, size_t size, struct answer *out)
{
    char *end = memmem(in, size, "\r\n\r\n", 4);
    size_t head, first;

    if (!end)
        return false;
    head = (size_t)(end - in) + 4;
    char kept = in[head - 2];
    in[head - 2] = 0; /* the head is a string now, up to the end of its last line */
    const char *length = header(in, "Content-Length"), *coding = header(in, "Transfer-Encoding");
    const char *connection = header(in, "Connection");
    *out = (struct answer){.status = size > 12 ? atoi(in + 9) : 0, .body = in + head};
    out->close = connection && strncasecmp(connection, "close", 5) == 0;
    if (length)
        out->body_size = strtoul(length, NULL, 10);
    bool chunked = coding && strncasecmp(coding, "chunked", 7) == 0;
    in[head - 2] = kept;
    if (chunked) {
        out->body_size = chunked_size(in + head, size - head, &first);
        out->whole = head + out->body_size;
        return out->body_size > 0;
    }
    out->whole = head + out->body_size;
    return out->whole <= size;
}

/* Copies the string behind "key":" in JSON that is known to be plain. */
static bool json_member(const char *body, size_t size, const char *key, char *out, size_t room)
{
    char mark[64];
    int n = snprintf(mark, sizeof mark, "\"%s\":\"", key);
    const char *at = memmem(body, size, mark, (size_t)n);
    const char *end = at ? memchr(at + n, '"', size - (size_t)(at + n - body)) : NULL;

    if (!end || (size_t)(end - at - n) >= room)
        return false;
    memcpy(out, at + n, (size_t)(end - at - n));
    out[end - at - n] = 0;
    return true;
}

static void judge(struct bench *bench, struct client *client, const struct answer *answer)
{
    char text[32];

    snprintf(text, sizeof text, "%d", answer->status);
    count(bench, "status", text);
    if (answer->status < 300)
        json_member(answer->body, answer->body_size, "id", client->id, sizeof client->id);
    else if (json_member(answer->body, answer->body_size, "code", text, 20))
        count(bench, "refused", text);
    else
        count(bench, "broken", "");
}

/* ---- one client ------------------------------------------------------------------------------ */

/* Receives until a whole answer is there. Then true, with the answer still in client->in; without
 * `wait` false when it has to wait. The other side may close between two answers. */
static bool receive(struct bench *bench, struct client *client, bool wait, struct answer *answer)
{
    for (;;) {
        ssize_t n = recv(client->fd, client->in + client->n_in, IN_SIZE - client->n_in,
                         wait ? 0 : MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0) {
            count(bench, "closed", "");
            *answer = (struct answer){.close = true, .body = ""};
            return true;
        }
        client->n_in += (size_t)n;
        if (parse_answer(client->in, client->n_in, answer))
            return true;
        if (client->n_in == IN_SIZE) {
            errno = EMSGSIZE;
            die("an answer");
        }
    }
}

static void consume(struct bench *bench, struct client *client, const struct answer *answer)
{
    client->n_in -= answer->whole;
    memmove(client->in, client->in + answer->whole, client->n_in);
    if (!answer->close)
        return;
    close(client->fd);
    client->fd = dial(bench);
    client->n_in = 0;
}

static void begin_step(struct bench *bench, struct client *client)
{
    client->step_start = now();
    if (client->step == 0)
        client->turn_start = client->step_start;
    send_request(&bench->steps[client->step], client->id, client->fd);
}

static void begin_turn(struct bench *bench, struct client *client)
{
    client->kept = bench->started++ >= bench->warmup;
    client->step = 0;
    client->id[0] = 0;
    begin_step(bench, client);
}

/* Takes an answer; true at the end of the turn. After a refused first step there is no rest. */
static bool end_step(struct bench *bench, struct client *client, const struct answer *answer)
{
    uint64_t end = now();
    size_t timed = bench->timed ? (size_t)bench->timed : bench->n_steps;

    judge(bench, client, answer);
    if (client->kept)
        add_sample(&bench->step_times[client->step],
                   end - (bench->at_once ? bench->start : client->step_start));
    if (client->step < timed)
        client->turn_end = end;
    bool over = ++client->step == bench->n_steps ||
                (answer->status >= 300 && strstr(bench->steps[client->step].path, "{id}"));
    consume(bench, client, answer);
    return over;
}

/* ---- one alone ------------------------------------------------------------------------------- */

static uint64_t metric(struct bench *bench, struct client *client, const char *name)
{
    const struct step get = {.method = "GET", .path = "/metrics"};
    struct answer answer;
    char mark[64];
    uint64_t value = 0;
    int n = snprintf(mark, sizeof mark, "\n%s ", name);

    send_request(&get, "", client->fd);
    receive(bench, client, true, &answer);
    const char *at = memmem(answer.body, answer.body_size, mark, (size_t)n);
    if (at)
        value = strtoull(at + n, NULL, 10);
    consume(bench, client, &answer);
    return value;
}

static void wait_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (ms > 0 && nanosleep(&t, &t) < 0 && errno == EINTR)
        continue;
}

static void run_command(struct bench *bench, bool keep)
{
    uint64_t start = now();
    pid_t pid;
    int status;

    errno = posix_spawn(&pid, bench->command[0], NULL, NULL, bench->command, environ);
    if (errno != 0 || waitpid(pid, &status, 0) != pid || status != 0)
        die(bench->command[0]);
    if (keep)
        add_sample(&bench->command_times, now() - start);
}

static void fill_pool(struct bench *bench, struct client *client)
{
    for (int i = 0; i < POOL_MS / 5; i++) {
        if (metric(bench, client, "cay_pool_ready") >= (uint64_t)bench->pool)
            return;
        wait_ms(5);
    }
}

static void run_alone(struct bench *bench)
{
    struct client *client = &bench->clients[0];
    struct answer answer;
    uint64_t hits = bench->pool ? metric(bench, client, "cay_pool_hits_total") : 0;

    while (bench->started < bench->warmup + bench->rounds) {
        if (bench->pool)
            fill_pool(bench, client);
        wait_ms(bench->pause_ms);
        if (bench->command)
            run_command(bench, bench->started >= bench->warmup);
        begin_turn(bench, client);
        do
            receive(bench, client, true, &answer);
        while (!end_step(bench, client, &answer) && (begin_step(bench, client), true));
        uint64_t hits_now = bench->pool ? metric(bench, client, "cay_pool_hits_total") : 1;
        if (client->kept)
            add_sample(hits_now > hits ? &bench->turns : &bench->cold,
                       client->turn_end - client->turn_start);
        hits = bench->pool ? hits_now : 0;
    }
}

/* ---- many ------------------------------------------------------------------------------------ */

/* All connections in one thread: it is the server that is measured. */
static void run_many(struct bench *bench)
{
    struct epoll_event events[256];
    long all = bench->warmup + bench->rounds;
    int set = epoll_create1(EPOLL_CLOEXEC);
    long working = 0;

    for (long i = 0; i < bench->n_clients; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        if (epoll_ctl(set, EPOLL_CTL_ADD, bench->clients[i].fd, &event) < 0)
            die("epoll_ctl");
    }
    bench->start = now();
    for (; working < bench->n_clients && bench->started < all; working++)
        begin_turn(bench, &bench->clients[working]);
    while (working > 0) {
        int n = epoll_wait(set, events, 256, -1);
        for (int i = 0; i < n; i++) {
            struct client *client = &bench->clients[events[i].data.u64];
            struct answer answer;
            int fd = client->fd;

            if (!receive(bench, client, false, &answer))
                continue;
            bool over = end_step(bench, client, &answer);
            if (client->fd != fd || answer.close) {
                struct epoll_event event = {.events = EPOLLIN, .data.u64 = events[i].data.u64};
                if (epoll_ctl(set, EPOLL_CTL_ADD, client->fd, &event) < 0)
                    die("epoll_ctl");
            }
            if (!over) {
                begin_step(bench, client);
                continue;
            }
            if (client->kept)
                add_sample(&bench->turns,
                           client->turn_end - (bench->at_once ? bench->start : client->turn_start));
            if (bench->started < all)
                begin_turn(bench, client);
            else
                working--;
        }
    }
    close(set);
}

/* ---- the command line ------------------------------------------------------------------------ */

static void read_steps(struct bench *bench, char **argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++) {
        char *path = strchr(*argv, ' '), *body = path ? strchr(path + 1, ' ') : NULL;
        if (!path || bench->n_steps == MAX_STEPS) {
            fprintf(stderr, "bench-http: '%s' is not METHOD PATH [JSON], or one too many\n", *argv);
            exit(125);
        }
        *path++ = 0;
        if (body)
            *body++ = 0;
        struct series *times = &bench->step_times[bench->n_steps];
        snprintf(times->label, sizeof times->label, "request %zu", bench->n_steps + 1);
        bench->steps[bench->n_steps++] = (struct step){*argv, path, body};
    }
    if (*argv && argv[1])
        bench->command = argv + 1;
}

static char **read_options(struct bench *bench, char **argv)
{
    const struct {
        const char *name;
        long *value, max;
    } options[] = {
        {"--clients", &bench->n_clients, MAX_CLIENTS},
        {"--rounds", &bench->rounds, MAX_ROUNDS},
        {"--warmup", &bench->warmup, MAX_ROUNDS},
        {"--timed", &bench->timed, MAX_STEPS},
        {"--pause", &bench->pause_ms, 60000},
        {"--pool", &bench->pool, 10000},
        {"--at-once", &bench->at_once, 1},
    };
    const size_t n = sizeof options / sizeof *options;

    for (; argv[0] && argv[0][0] == '-' && argv[1]; argv += 2) {
        size_t i = 0;
        while (i < n && strcmp(*argv, options[i].name) != 0)
            i++;
        long value = strtol(argv[1], NULL, 10);
        if (i == n || value < 0 || value > options[i].max)
            break;
        *options[i].value = value;
    }
    return argv;
}

int main(int argc, char **argv)
{
    struct bench bench = {.n_clients = 1,
                          .rounds = 100,
                          .address.sun_family = AF_UNIX,
                          .command_times.label = "command",
                          .turns.label = "turn",
                          .cold.label = "cold",
                          .took.label = "took"};

    (void)argc;
    argv = read_options(&bench, argv + 1);
    if (!argv[0] || argv[0][0] == '-' || !argv[1] || bench.n_clients == 0 ||
        strlen(argv[0]) >= sizeof bench.address.sun_path) {
        fprintf(stderr, "usage: http [OPTIONS] SOCKET REQUEST... [-- CMD [ARG...]]\n");
        return 125;
    }
    memcpy(bench.address.sun_path, argv[0], strlen(argv[0]));
    read_steps(&bench, argv + 1);
    bench.clients = memory(NULL, (size_t)bench.n_clients * sizeof *bench.clients);
    for (long i = 0; i < bench.n_clients; i++)
        bench.clients[i] = (struct client){.fd = dial(&bench), .in = memory(NULL, IN_SIZE)};
    bench.start = now();
    if (bench.n_clients == 1 && !bench.at_once)
        run_alone(&bench);
    else
        run_many(&bench);
    add_sample(&bench.took, now() - bench.start);
    print_series(&bench.command_times);
    print_series(&bench.turns);
    print_series(&bench.cold);
    for (size_t i = 0; i < bench.n_steps; i++)
        print_series(&bench.step_times[i]);
    print_series(&bench.took);
    for (size_t i = 0; i < bench.n_counts; i++)
        print_series(&bench.counts[i]);
    return 0;
}
