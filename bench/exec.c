/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times libcay on live sandboxes, with fork+exec in the same process as the yardstick.
 *
 *   exec [--rounds N] [--warmup N] [--lists N] ID...
 *
 * Each round takes the next sandbox in turn and samples, one after the other: fork+exec of
 * /bin/true on the host, cay_run of /bin/true inside it, and attach (cay_get + cay_info). --lists
 * adds that many cay_list of everything alive. Output as spawn prints it: LABEL TAB ok TAB
 * nanoseconds,...; "listed" is the number of sandboxes that cay_list found. State and run
 * directory come from the environment, as for any caller.
 */
#include <errno.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include <cay/cay.h>

#define COMMAND "/bin/true"
#define MAX_ROUNDS 1000000

enum { FORK, EXEC, ATTACH, LIST, N_SERIES };
static const char *const labels[N_SERIES] = {"fork", "exec", "attach", "list"};

struct bench {
    struct cay *cay;
    struct cay_sandbox **sandboxes;
    char **ids;
    size_t n_ids;
    long rounds, warmup, lists;
    uint64_t *samples[N_SERIES];
    size_t n_samples[N_SERIES];
    uint64_t listed;
};

extern char **environ;

static uint64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what, const struct cay_error *err)
{
    fprintf(stderr, "bench-exec: %s: %s\n", what, err ? err->text : strerror(errno));
    exit(125);
}

static void take(struct bench *bench, int series, uint64_t start, bool keep)
{
    uint64_t took = now() - start;

    if (keep)
        bench->samples[series][bench->n_samples[series]++] = took;
}

static void sample_fork(struct bench *bench, bool keep)
{
    char *argv[] = {COMMAND, NULL};
    uint64_t start = now();
    pid_t pid;
    int status;

    errno = posix_spawn(&pid, COMMAND, NULL, NULL, argv, environ);
    if (errno != 0 || waitpid(pid, &status, 0) != pid || status != 0)
        die(COMMAND, NULL);
    take(bench, FORK, start, keep);
}

static void sample_exec(struct bench *bench, size_t which, bool keep)
{
    const char *argv[] = {COMMAND, NULL};
    struct cay_exec exec = {.argv = argv};
    struct cay_result result = {0};
    struct cay_error err;
    uint64_t start = now();

    if (cay_run(bench->sandboxes[which], &exec, &result, &err) < 0)
        die("cay_run", &err);
    take(bench, EXEC, start, keep);
    if (result.exit.exit_code != 0) {
        fprintf(stderr, "bench-exec: %s in %s ended with %d\n", COMMAND, bench->ids[which],
                result.exit.exit_code);
        exit(125);
    }
    cay_result_done(&result);
}

static void sample_attach(struct bench *bench, size_t which, bool keep)
{
    struct cay_sandbox *sandbox;
    struct cay_info info = {0};
    struct cay_error err;
    uint64_t start = now();

    if (cay_get(bench->cay, bench->ids[which], &sandbox, &err) < 0)
        die("cay_get", &err);
    if (cay_info(sandbox, &info, &err) < 0)
        die("cay_info", &err);
    take(bench, ATTACH, start, keep);
    cay_info_done(&info);
    cay_sandbox_free(sandbox);
}

static int count_one(const struct cay_info *info, void *data)
{
    uint64_t *count = data;

    *count += info->state == CAY_STATE_RUNNING;
    return 0;
}

static void sample_list(struct bench *bench)
{
    struct cay_filter filter = {0};
    struct cay_error err;
    uint64_t start = now();

    bench->listed = 0;
    if (cay_list(bench->cay, &filter, count_one, &bench->listed, &err) < 0)
        die("cay_list", &err);
    take(bench, LIST, start, true);
}

static void open_all(struct bench *bench)
{
    struct cay_error err;

    if (cay_open(NULL, &bench->cay, &err) < 0)
        die("cay_open", &err);
    bench->sandboxes = calloc(bench->n_ids, sizeof *bench->sandboxes);
    for (int i = 0; i < N_SERIES; i++) {
        size_t room = (size_t)(bench->rounds + bench->lists + 1);
        bench->samples[i] = calloc(room, sizeof *bench->samples[i]);
        if (!bench->sandboxes || !bench->samples[i])
            die("memory", NULL);
    }
    for (size_t i = 0; i < bench->n_ids; i++)
        if (cay_get(bench->cay, bench->ids[i], &bench->sandboxes[i], &err) < 0)
            die(bench->ids[i], &err);
}

static void report(const struct bench *bench)
{
    for (int i = 0; i < N_SERIES; i++) {
        printf("%s\tok\t", labels[i]);
        for (size_t j = 0; j < bench->n_samples[i]; j++)
            printf("%s%llu", j ? "," : "", (unsigned long long)bench->samples[i][j]);
        printf("\n");
    }
    printf("listed\tok\t%llu\n", (unsigned long long)bench->listed);
}

int main(int argc, char **argv)
{
    struct bench bench = {.rounds = 200, .warmup = 5};
    const struct {
        const char *name;
        long *value;
    } options[] = {
        {"--rounds", &bench.rounds},
        {"--warmup", &bench.warmup},
        {"--lists", &bench.lists},
    };
    const size_t n_options = sizeof options / sizeof *options;
    int at = 1;

    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        size_t i = 0;
        while (i < n_options && strcmp(argv[at], options[i].name) != 0)
            i++;
        long value = strtol(argv[at + 1], NULL, 10);
        if (i == n_options || value < 0 || value > MAX_ROUNDS)
            break;
        *options[i].value = value;
    }
    if (at >= argc || argv[at][0] == '-') {
        fprintf(stderr, "usage: exec [--rounds N] [--warmup N] [--lists N] ID...\n");
        return 125;
    }
    bench.ids = argv + at;
    bench.n_ids = (size_t)(argc - at);
    open_all(&bench);
    for (long round = -bench.warmup; round < bench.rounds; round++) {
        size_t which = (size_t)(round + bench.warmup) % bench.n_ids;
        sample_fork(&bench, round >= 0);
        sample_exec(&bench, which, round >= 0);
        sample_attach(&bench, which, round >= 0);
    }
    for (long i = 0; i < bench.lists; i++)
        sample_list(&bench);
    report(&bench);
    for (size_t i = 0; i < bench.n_ids; i++)
        cay_sandbox_free(bench.sandboxes[i]);
    cay_close(bench.cay);
    return 0;
}
