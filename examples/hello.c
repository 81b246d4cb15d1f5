/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A first program with libcay: makes a sandbox, runs a command in it, prints what it said, removes
 * it.
 *
 *   cc hello.c $(pkg-config --cflags --libs cay) -o hello && ./hello
 */
#include <cay/cay.h>
#include <stdio.h>

int main(void)
{
    struct cay *cay = NULL;
    struct cay_sandbox *box = NULL;
    struct cay_result result = {0};
    struct cay_error err;
    const struct cay_spec spec = {.pids = 64, .ttl_ms = 60 * 1000};
    const char *argv[] = {"/bin/sh", "-c", "echo hello from pid $$ of a sandbox", NULL};

    int failed = cay_open(NULL, &cay, &err) < 0 || cay_create(cay, &spec, &box, &err) < 0 ||
                 cay_run(box, &(struct cay_exec){.argv = argv}, &result, &err) < 0;
    if (!failed)
        printf("%s(exit code %d)\n", result.out, result.exit.exit_code);
    if (box && cay_remove(cay, cay_sandbox_id(box), true, failed ? NULL : &err) < 0)
        failed = 1;
    if (failed)
        fprintf(stderr, "hello: %s: %s\n", cay_code_name(err.code), err.text);
    cay_result_done(&result);
    cay_sandbox_free(box);
    cay_close(cay);
    return failed;
}
