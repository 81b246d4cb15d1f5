/* SPDX-License-Identifier: Apache-2.0 */
/*
 * audit_driver DIR COUNT ROTATE KEEP MODE: writes a log as the daemon does, for the tests that look
 * at logs with other programs. Sandbox box<i % 100>, tenants acme and none by turns, labels, argv.
 *
 *   close  COUNT entries, then the orderly end
 *   kill   COUNT entries, a sync in the middle, then SIGKILL
 *   full   entries until the disk is full; prints "full SEQ", waits for a line on stdin, adds COUNT
 *   slow   entries with pauses and syncs until stdin ends, COUNT at most
 */
#include "audit/audit.h"

#include "base/util.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int append(struct audit *audit, uint64_t i, struct cay_error *err)
{
    static const enum audit_action actions[] = {AUDIT_EXEC, AUDIT_WRITE, AUDIT_EXEC, AUDIT_CREATE,
                                                AUDIT_REFUSED};
    char id[40], run[32];
    bool tenant = i % 2;
    snprintf(id, sizeof(id), "%sbox%llu", tenant ? "acme~" : "", (unsigned long long)i % 100);
    snprintf(run, sizeof(run), "run=%llu", (unsigned long long)i % 7);
    enum audit_action action = actions[i % CAY_COUNT(actions)];
    const char *argv[] = {"/bin/sh", "-c", "echo \"h\xc3\xa9llo\" > /tmp/x; true", NULL};
    const char *env[] = {"TOKEN=very-secret-value", "PATH=/bin", NULL};
    const char *labels[] = {"team=red", run, NULL};
    const struct audit_entry entry = {
        .who = tenant ? "ci" : "operator",
        .tenant = tenant ? "acme" : NULL,
        .action = action,
        .sandbox = id,
        .labels = labels,
        .result = action == AUDIT_REFUSED ? CAY_E_DENIED : CAY_OK,
        .detail = {.argv = action == AUDIT_EXEC ? argv : NULL,
                   .env = action == AUDIT_EXEC ? env : NULL,
                   .path = action == AUDIT_WRITE ? "/work/a\nb" : NULL,
                   .bytes = action == AUDIT_WRITE ? AUDIT_NUMBER(i) : NULL,
                   .rule = action == AUDIT_REFUSED ? "policy.images" : NULL}};
    return audit_append(audit, &entry, NULL, err);
}

static int fill(struct audit *audit, uint64_t *i, struct cay_error *err)
{
    char answer[8];
    while (append(audit, *i, err) == 0)
        ++*i;
    if (err->code != CAY_E_NO_SPACE)
        return -1;
    for (int again = 0; again < 3; again++)
        if (append(audit, *i, err) == 0)
            ++*i;
    printf("full %llu\n", (unsigned long long)*i);
    fflush(stdout);
    return fgets(answer, sizeof(answer), stdin) ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct cay_error err = {0};
    struct audit *audit = NULL;
    if (argc != 6)
        return 2;
    uint64_t count = strtoull(argv[2], NULL, 10), i = 0;
    const struct audit_options options = {.rotate_bytes = strtoull(argv[3], NULL, 10),
                                          .keep = (uint32_t)strtoul(argv[4], NULL, 10)};
    const char *mode = argv[5];
    if (audit_open(argv[1], &options, &audit, &err) < 0)
        goto failed;
    if (strcmp(mode, "full") == 0 && fill(audit, &i, &err) < 0)
        goto failed;
    for (uint64_t end = i + count; i < end; i++) {
        if (append(audit, i, &err) < 0)
            goto failed;
        if (strcmp(mode, "kill") == 0 && i == end / 2)
            audit_sync(audit, &err);
        if (strcmp(mode, "slow") == 0 && i % 50 == 49) {
            struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
            audit_sync(audit, &err);
            if (poll(&p, 1, 1) > 0)
                break;
        }
    }
    if (strcmp(mode, "kill") == 0)
        raise(SIGKILL);
    audit_close(audit);
    return 0;
failed:
    fprintf(stderr, "%s: %s\n", cay_code_name(err.code), err.text);
    audit_close(audit);
    return 1;
}
