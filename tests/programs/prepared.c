/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prepared sandboxes by hand, for tests/integration/test_prepared.py and for measuring. One command
 * on a line of standard input, words apart by blanks, or tabs if there are any; one line answers
 * it: "ok ..." or "error CODE TEXT". OPTIONS are those of `cay create`.
 *
 *   key OPTIONS           the key of a spec
 *   prepare OPTIONS       starts one; answers its number
 *   wait N                until number N is ready
 *   free N                lets it go
 *   claim N|- OPTIONS     create_from; answers the id and whether it existed
 *   own N OPTIONS         the same, and it is ephemeral
 *   dial ID               sandbox_dial
 *   bench N OPTIONS       N times: prepare, wait, then timed: claim, /bin/true in it, its result;
 *                         answers the nanoseconds of the claims, then of the whole
 *
 * End of input ends it, and so all that it has prepared and not given away.
 */
#include "base/opt.h"
#include "base/util.h"
#include "sandbox/create.h"
#include "sandbox/sandbox.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_WORDS 256
#define MAX_PREPARED 1024

struct driver {
    struct cay *cay;
    struct prepared *prepared[MAX_PREPARED];
    size_t n;
    struct opt_arena arena;
    struct cay_spec spec; /* of the command */
    char **rest;          /* its other words */
    struct cay_error err;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct prepared **find(struct driver *d)
{
    static struct prepared *none;
    size_t n = d->rest[0] && d->rest[0][0] != '-' ? strtoul(d->rest[0], NULL, 10) : MAX_PREPARED;
    return n < d->n ? &d->prepared[n] : &none;
}

static int await(struct prepared *prepared, struct cay_error *err)
{
    int ready;
    while ((ready = prepare_ready(prepared, err)) == 0)
        poll(&(struct pollfd){.fd = prepare_fd(prepared), .events = POLLIN}, 1, 10000);
    return ready < 0 ? -1 : 0;
}

static int do_key(struct driver *d)
{
    char key[CREATE_KEY_SIZE];
    if (create_key(d->cay, &d->spec, key, &d->err) < 0)
        return -1;
    printf("ok %s\n", key);
    return 0;
}

static int do_prepare(struct driver *d)
{
    if (prepare_start(d->cay, &d->spec, &d->prepared[d->n], &d->err) < 0)
        return -1;
    printf("ok %zu\n", d->n++);
    return 0;
}

static int do_wait(struct driver *d)
{
    if (await(*find(d), &d->err) < 0)
        return -1;
    printf("ok\n");
    return 0;
}

static int do_free(struct driver *d)
{
    prepare_free(*find(d));
    *find(d) = NULL;
    printf("ok\n");
    return 0;
}

static int do_claim(struct driver *d)
{
    struct cay_sandbox *sandbox;
    bool existed;
    struct prepared *prepared = *find(d);
    *find(d) = NULL;
    if (create_from(d->cay, &d->spec, prepared, &sandbox, &existed, &d->err) < 0)
        return -1;
    printf("ok %s %s\n", cay_sandbox_id(sandbox), existed ? "existed" : "new");
    if (!d->spec.ephemeral)
        cay_sandbox_free(sandbox); /* an ephemeral one lives as long as we do */
    return 0;
}

static int do_own(struct driver *d)
{
    d->spec.ephemeral = true;
    return do_claim(d);
}

static int do_dial(struct driver *d)
{
    int sock;
    if (sandbox_dial(d->cay, d->rest[0], &sock, &d->err) < 0)
        return -1;
    close(sock);
    printf("ok\n");
    return 0;
}

static int bench_one(struct driver *d, uint64_t *claimed, uint64_t *done)
{
    const char *argv[] = {"/bin/true", NULL};
    const struct cay_exec exec = {.argv = argv};
    struct cay_result result = {0};
    struct cay_sandbox *sandbox;
    struct prepared *prepared;
    if (prepare_start(d->cay, &d->spec, &prepared, &d->err) < 0)
        return -1;
    if (await(prepared, &d->err) < 0) {
        prepare_free(prepared);
        return -1;
    }
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    uint64_t start = now_ns();
    if (create_from(d->cay, &d->spec, prepared, &sandbox, NULL, &d->err) < 0)
        return -1;
    *claimed = now_ns() - start;
    int ran = cay_run(sandbox, &exec, &result, &d->err);
    *done = now_ns() - start;
    char id[CAY_MAX_ID];
    snprintf(id, sizeof(id), "%s", cay_sandbox_id(sandbox));
    cay_result_done(&result);
    cay_sandbox_free(sandbox);
    return ran < 0 ? -1 : d->spec.ephemeral ? 0 : cay_remove(d->cay, id, true, &d->err);
}

static int do_bench(struct driver *d)
{
    size_t n = strtoul(d->rest[0], NULL, 10);
    uint64_t *claims = calloc(n + 1, sizeof(*claims)), *wholes = calloc(n + 1, sizeof(*wholes));
    int result = 0;
    for (size_t i = 0; result == 0 && i < n; i++)
        result = bench_one(d, &claims[i], &wholes[i]);
    for (int pass = 0; result == 0 && pass < 2; pass++) {
        printf(pass ? " " : "ok ");
        for (size_t i = 0; i < n; i++)
            printf("%s%llu", i ? "," : "", (unsigned long long)(pass ? wholes : claims)[i]);
    }
    if (result == 0)
        printf("\n");
    free(claims);
    free(wholes);
    return result;
}

static const struct {
    const char *name;
    int (*run)(struct driver *d);
} commands[] = {
    {"key", do_key},     {"prepare", do_prepare}, {"wait", do_wait}, {"free", do_free},
    {"claim", do_claim}, {"own", do_own},         {"dial", do_dial}, {"bench", do_bench},
};

static int obey(struct driver *d, char *line)
{
    char *words[MAX_WORDS + 1];
    size_t n = 0;
    struct opt_args args;
    const struct opt_group groups[] = {{opt_spec, opt_spec_count, &d->spec}, {0}};
    const char *between = strchr(line, '\t') ? "\t\n" : " \n";
    for (char *w = strtok(line, between); w && n < MAX_WORDS; w = strtok(NULL, between))
        words[n++] = w;
    words[n] = NULL;
    d->spec = (struct cay_spec){0};
    if (n == 0 || opt_parse(&d->arena, groups, words + 1, SIZE_MAX, &args, &d->err) < 0)
        return -1;
    d->rest = args.operands;
    for (size_t i = 0; i < CAY_COUNT(commands); i++)
        if (strcmp(commands[i].name, words[0]) == 0)
            return commands[i].run(d);
    return -1;
}

int main(void)
{
    static struct driver d;
    static char line[65536];
    if (cay_open(NULL, &d.cay, &d.err) < 0) {
        printf("error %s %s\n", cay_code_name(d.err.code), d.err.text);
        return 1;
    }
    while (fgets(line, sizeof(line), stdin)) {
        if (obey(&d, line) < 0)
            printf("error %s %s\n", cay_code_name(d.err.code), d.err.text);
        fflush(stdout);
        opt_arena_done(&d.arena);
    }
    for (size_t i = 0; i < d.n; i++)
        prepare_free(d.prepared[i]);
    cay_close(d.cay);
    return 0;
}
