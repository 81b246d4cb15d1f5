/* SPDX-License-Identifier: Apache-2.0 */
/* The audit log: lines, chain, rotation, crashes, full disks, tampering, queries, following. */
#include "audit/audit.h"
#include "audit/line.h"
#include "audit/store.h"
#include "base/limits.h"
#include "base/util.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>

static char top[64], dir[80];

static int setup(void **state __attribute__((unused)))
{
    strcpy(top, "/tmp/cay-audit-XXXXXX");
    if (!mkdtemp(top))
        return -1;
    snprintf(dir, sizeof(dir), "%s/audit", top);
    return 0;
}

static int teardown(void **state __attribute__((unused)))
{
    return cay_remove_tree_at(AT_FDCWD, top);
}

static struct audit *open_log(uint64_t rotate, uint32_t keep)
{
    struct cay_error err = {0};
    struct audit *audit = NULL;
    const struct audit_options options = {.rotate_bytes = rotate, .keep = keep};
    if (audit_open(dir, &options, &audit, &err) < 0)
        fail_msg("%s", err.text);
    return audit;
}

static const char *const red[] = {"team=red", "env=test", NULL};

static uint64_t append(struct audit *audit, enum audit_action action, const char *sandbox,
                       const char *tenant)
{
    struct cay_error err = {0};
    struct audit_added added = {0};
    const struct audit_entry entry = {
        .who = "ci", .tenant = tenant, .action = action, .sandbox = sandbox, .labels = red};
    if (audit_append(audit, &entry, &added, &err) < 0)
        fail_msg("%s", err.text);
    return added.seq;
}

/* ---- helpers that look at the result --------------------------------------------------------- */

struct seen {
    uint64_t n, first, last, faults, notes;
    enum audit_fault fault; /* of the first one */
    char text[8192];
};

static int see(const char *line, size_t size, void *data)
{
    struct seen *seen = data;
    autoline struct audit_line l = {0};
    assert_int_equal(audit_line_parse(line, size, &l, NULL), 0);
    assert_true(seen->n == 0 || l.seq > seen->last);
    if (seen->n++ == 0)
        seen->first = l.seq;
    seen->last = l.seq;
    snprintf(seen->text, sizeof(seen->text), "%.*s", (int)size, line);
    return 0;
}

static struct seen ask(struct audit_query query)
{
    struct seen seen = {0}, scanned = {0};
    struct cay_error err = {0};
    if (audit_query(dir, &query, see, &seen, &err) < 0)
        fail_msg("%s", err.text);
    query.no_index = true;
    assert_int_equal(audit_query(dir, &query, see, &scanned, &err), 0);
    assert_int_equal(seen.n, scanned.n);
    assert_int_equal(seen.first, scanned.first);
    assert_int_equal(seen.last, scanned.last);
    return seen;
}

static void report(const struct audit_finding *f, void *data)
{
    struct seen *seen = data;
    assert_non_null(f->file);
    assert_null(strchr(f->text, '\n'));
    if (f->fault == AUDIT_NOTE) {
        seen->notes++;
        return;
    }
    if (seen->faults++ == 0) {
        seen->fault = f->fault;
        snprintf(seen->text, sizeof(seen->text), "%s", f->text);
    }
}

static struct seen verify(void)
{
    struct seen seen = {0};
    struct audit_summary sum = {0};
    struct cay_error err = {0};
    if (audit_verify(dir, report, &seen, &sum, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(sum.faults, seen.faults);
    seen.n = sum.entries;
    seen.first = sum.first_seq;
    seen.last = sum.last_seq;
    return seen;
}

static void assert_whole(uint64_t first, uint64_t last)
{
    struct seen seen = verify();
    if (seen.faults)
        fail_msg("%s: %s", audit_fault_name(seen.fault), seen.text);
    assert_int_equal(seen.first, first);
    assert_int_equal(seen.last, last);
    assert_int_equal(seen.n, last - first + 1);
}

static char *slurp(const char *name, size_t *size)
{
    char path[160];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    char *data = malloc((size_t)st.st_size + 1);
    assert_non_null(data);
    assert_int_equal(cay_read_all(fd, data, (size_t)st.st_size), st.st_size);
    data[st.st_size] = 0;
    *size = (size_t)st.st_size;
    return data;
}

static void spit(const char *name, const char *data, size_t size)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    autofd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && cay_write_all(fd, data, size) == 0);
}

static void drop(const char *name)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(unlink(path), 0);
}

static bool exists(const char *name)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static struct audit_line make(struct cay_buf *buf, const struct audit_entry *entry)
{
    char hash[AUDIT_HASH], prev[AUDIT_HASH], again[AUDIT_HASH];
    struct audit_line line = {0};
    const struct audit_stamp stamp = {
        .seq = 7, .wall_us = 1794782024123456ull, .mono_us = 5, .boot = "b", .prev = AUDIT_NO_HASH};
    *buf = CAY_BUF(AUDIT_MAX_LINE);
    assert_int_equal(audit_line_make(buf, entry, &stamp, hash), 0);
    assert_true(audit_line_sealed(buf->data, buf->size, prev, again));
    assert_string_equal(hash, again);
    assert_string_equal(prev, AUDIT_NO_HASH);
    assert_int_equal(audit_line_parse(buf->data, buf->size, &line, NULL), 0);
    assert_null(memchr(buf->data, '\n', buf->size));
    return line;
}

TEST(a_line_says_what_was_done)
{
    autobuf struct cay_buf buf = {0};
    const char *argv[] = {"sh", "-c", "a\nb\x01\xff", NULL}, *env[] = {"A=secret", "B", NULL};
    const struct audit_entry entry = {.who = "ci",
                                      .tenant = "acme",
                                      .action = AUDIT_EXEC,
                                      .sandbox = "acme~box",
                                      .labels = red,
                                      .result = CAY_E_LIMIT,
                                      .detail = {.argv = argv,
                                                 .env = env,
                                                 .path = "/x",
                                                 .rule = "policy.pids",
                                                 .exit_code = AUDIT_NUMBER(0)}};
    autoline struct audit_line line = make(&buf, &entry);
    const char *expected =
        "{\"seq\":7,\"time\":\"2026-11-15T22:33:44.123456Z\",\"mono_us\":5,\"boot\":\"b\","
        "\"who\":\"ci\",\"tenant\":\"acme\",\"action\":\"exec\",\"sandbox\":\"acme~box\","
        "\"labels\":{\"team\":\"red\",\"env\":\"test\"},\"detail\":{\"argv\":[\"sh\",\"-c\","
        "\"a\\nb\\u0001\xef\xbf\xbd\"],\"env\":[\"A\",\"B\"],\"path\":\"/"
        "x\",\"rule\":\"policy.pids\","
        "\"exit_code\":0},\"result\":\"limit\",\"prev\":\"";
    assert_memory_equal(buf.data, expected, strlen(expected));
    assert_int_equal(line.time_ms, 1794782024123ull);
    assert_null(strstr(buf_cstr(&buf), "secret"));
}

TEST(what_callers_choose_is_bounded)
{
    autobuf struct cay_buf buf = {0};
    static char big[20000], value[2000];
    const char *argv[200], *labels[CAY_MAX_LABELS + 9];
    memset(big, 1, sizeof(big) - 1);
    memset(value, 1, sizeof(value) - 1);
    memcpy(value, "k", 1);
    for (size_t i = 0; i < COUNT(argv); i++)
        argv[i] = big + sizeof(big) - 100;
    argv[COUNT(argv) - 1] = NULL;
    char keys[CAY_MAX_LABELS + 8][600];
    for (size_t i = 0; i < CAY_MAX_LABELS + 8; i++) {
        memset(keys[i], '\\', sizeof(keys[i]) - 1);
        memset(keys[i] + 100, 1, 499);
        keys[i][599] = 0;
        keys[i][0] = (char)('0' + i);
        keys[i][100] = '=';
        labels[i] = keys[i];
    }
    labels[CAY_MAX_LABELS + 8] = NULL;
    const struct audit_entry entry = {.who = big,
                                      .tenant = big,
                                      .sandbox = big,
                                      .labels = labels,
                                      .action = AUDIT_EXEC,
                                      .detail = {.argv = argv,
                                                 .env = argv,
                                                 .path = big,
                                                 .to = big,
                                                 .image = big,
                                                 .user = big,
                                                 .rule = big,
                                                 .state = big,
                                                 .reason = big,
                                                 .peer = big}};
    autoline struct audit_line line = make(&buf, &entry);
    assert_true(buf.size < AUDIT_MAX_LINE);
    assert_non_null(strstr(buf_cstr(&buf), "\"truncated\":true"));
    (void)line;
}

TEST(numbers_and_times_beyond_all_bounds)
{
    autobuf struct cay_buf buf = CAY_BUF(AUDIT_MAX_LINE);
    autoline struct audit_line line = {0};
    char hash[AUDIT_HASH];
    const struct audit_entry entry = {.who = "o", .detail = {.ttl_ms = AUDIT_NUMBER(UINT64_MAX)}};
    const struct audit_stamp stamp = {
        .seq = 1, .wall_us = UINT64_MAX, .mono_us = UINT64_MAX, .boot = "", .prev = AUDIT_NO_HASH};
    assert_int_equal(audit_line_make(&buf, &entry, &stamp, hash), 0);
    assert_int_equal(audit_line_parse(buf.data, buf.size, &line, NULL), 0);
    struct audit_head head;
    assert_false(audit_head_parse("18446744073709551615 " AUDIT_NO_HASH "\n", 86, &head));
    assert_false(audit_head_parse("01 " AUDIT_NO_HASH "\n", 68, &head));
    assert_true(audit_head_parse("1 " AUDIT_NO_HASH "\n", 67, &head));
}

TEST(a_list_is_cut_between_characters)
{
    autobuf struct cay_buf buf = {0};
    static char text[AUDIT_MAX_ARG_BYTES + 10];
    memset(text, 'x', sizeof(text) - 1);
    memcpy(text + AUDIT_MAX_ARG_BYTES - 1, "\xc3\xa9", 2);
    const char *argv[] = {text, "more", NULL};
    const struct audit_entry entry = {.who = "o", .action = AUDIT_EXEC, .detail = {.argv = argv}};
    autoline struct audit_line line = make(&buf, &entry);
    assert_null(strstr(buf_cstr(&buf), "\xc3"));
    assert_null(strstr(buf.data, "\xef\xbf\xbd"));
    assert_null(strstr(buf.data, "more"));
    assert_non_null(strstr(buf.data, "\"truncated\":true"));
    (void)line;
}

TEST(a_label_is_there_once)
{
    autobuf struct cay_buf buf = {0};
    const char *labels[] = {"a=1", "ab=2", "a=3", "\xff=4", "\xfe=5", "=6", NULL};
    const struct audit_entry entry = {.who = "o", .labels = labels};
    autoline struct audit_line line = make(&buf, &entry);
    assert_non_null(strstr(buf_cstr(&buf), "\"labels\":{\"ab\":\"2\",\"a\":\"3\"}"));
    (void)line;
}

TEST(lines_that_are_none)
{
    static const char *const bad[] = {
        "",
        "{}",
        "null",
        "{\"seq\":0,\"time\":\"2026-11-15T22:33:44Z\",\"who\":\"o\",\"tenant\":null,\"action\":"
        "\"x\","
        "\"sandbox\":null,\"labels\":{},\"detail\":{},\"result\":\"ok\"}",
        "{\"seq\":1,\"time\":\"2026-13-15T22:33:44Z\",\"who\":\"o\",\"tenant\":null,\"action\":"
        "\"x\","
        "\"sandbox\":null,\"labels\":{},\"detail\":{},\"result\":\"ok\"}",
        "{\"seq\":1,\"time\":\"2026-11-15T22:33:44Z\",\"who\":\"o\",\"action\":\"x\","
        "\"sandbox\":null,\"labels\":{},\"detail\":{},\"result\":\"ok\"}",
        "{\"seq\":1,\"seq\":2,\"time\":\"2026-11-15T22:33:44Z\",\"who\":\"o\",\"tenant\":null,"
        "\"action\":\"x\",\"sandbox\":null,\"labels\":{},\"detail\":{},\"result\":\"ok\"}",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct audit_line line = {0};
        struct cay_error err = {0};
        if (audit_line_parse(bad[i], strlen(bad[i]), &line, &err) != -1)
            fail_msg("case %zu was taken", i);
        assert_error(err, CAY_E_INVALID, "");
    }
}

TEST(times)
{
    static const struct {
        const char *text;
        uint64_t ms;
    } good[] = {{"1970-01-01T00:00:00Z", 0},
                {"2026-11-15T22:33:44.5Z", 1794782024500ull},
                {"2026-11-15T23:33:44.123456789+01:00", 1794782024123ull},
                {"2026-11-15t21:33:44-01:00", 1794782024000ull},
                {"2024-02-29T00:00:00Z", 1709164800000ull},
                {"2016-12-31T23:59:60Z", 1483228799000ull}};
    static const char *const bad[] = {"",
                                      "2026",
                                      "2026-11-15",
                                      "2026-11-15T22:33:44",
                                      "2026-02-30T00:00:00Z",
                                      "2026-11-15T24:00:00Z",
                                      "2026-11-15T22:33:44.Z",
                                      "2026-11-15T22:33:44Zx",
                                      "1969-12-31T23:59:59Z",
                                      "1970-01-01T00:00:00+01:00",
                                      "2026-11-15T22:33:44+99:00"};
    uint64_t ms;
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(audit_time_parse(good[i].text, &ms, NULL), 0);
        assert_int_equal(ms, good[i].ms);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (audit_time_parse(bad[i], &ms, NULL) != -1)
            fail_msg("'%s' was taken", bad[i]);
}

/* ---- the journal ----------------------------------------------------------------------------- */

TEST(the_chain_goes_on_over_rotation_and_restarts)
{
    for (int round = 0; round < 4; round++) {
        struct audit *audit = open_log(4000, 0);
        for (int i = 0; i < 25; i++)
            append(audit, AUDIT_EXEC, "box", NULL);
        audit_close(audit);
    }
    assert_whole(1, 100);
    assert_true(exists("audit-0000000000000001.jsonl"));
    struct seen seen = ask((struct audit_query){.sandbox = "box"});
    assert_int_equal(seen.n, 100);
}

TEST(a_log_has_one_writer)
{
    struct audit *audit = open_log(0, 0), *second = NULL;
    struct cay_error err = {0};
    assert_int_equal(audit_open(dir, NULL, &second, &err), -1);
    assert_error(err, CAY_E_CONFLICT, "another");
    audit_close(audit);
    audit_close(NULL);
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(audit_open(dir, NULL, &second, &err), -1);
    assert_error(err, CAY_E_DENIED, "writable");
}

TEST(old_files_are_pruned_and_that_is_told)
{
    struct audit *audit = open_log(4000, 2);
    for (int i = 0; i < 100; i++) {
        append(audit, AUDIT_EXEC, i % 2 ? "a" : "b", NULL);
        if (i % 20 == 0)
            ask((struct audit_query){.sandbox = "a"});
    }
    audit_close(audit);
    struct seen seen = verify();
    assert_int_equal(seen.faults, 0);
    assert_int_equal(seen.notes, 0);
    assert_true(seen.first > 1 && !exists("audit-0000000000000001.jsonl"));
    struct seen pruned = ask((struct audit_query){.action = "pruned"});
    assert_true(pruned.n > 0);
    struct seen all = ask((struct audit_query){0});
    assert_int_equal(all.first, seen.first);
    /* The same without a word is at least noted. */
    autobuf struct cay_buf list = CAY_BUF(4096);
    autofd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(audit_store_list(fd, &list, NULL), 0);
    assert_int_equal(list.size, 2 * sizeof(uint64_t));
    char name[AUDIT_NAME];
    uint64_t oldest;
    memcpy(&oldest, list.data, sizeof(oldest));
    audit_store_name(oldest, name);
    drop(name);
    seen = verify();
    assert_int_equal(seen.faults, 0);
    assert_int_equal(seen.notes, 1);
}

TEST(a_torn_line_is_put_aside)
{
    size_t size;
    struct audit *audit = open_log(0, 0);
    for (int i = 0; i < 10; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    audit_close(audit);
    autofree char *data = slurp(AUDIT_CURRENT, &size);
    /* As kill -9 in the middle of the eleventh leaves it. */
    autofree char *torn = malloc(size + 100);
    assert_non_null(torn);
    memcpy(torn, data, size);
    memcpy(torn + size, data, 100);
    spit(AUDIT_CURRENT, torn, size + 100);
    assert_int_equal(verify().fault, AUDIT_FAULT_CHANGED);
    assert_int_equal(ask((struct audit_query){0}).n, 10);

    audit = open_log(0, 0);
    assert_int_equal(append(audit, AUDIT_EXEC, "box", NULL), 12);
    audit_close(audit);
    assert_true(exists("torn-11"));
    assert_whole(1, 12);
    struct seen seen = ask((struct audit_query){.action = "recovered"});
    assert_int_equal(seen.first, 11);
    assert_non_null(strstr(seen.text, "\"reason\":\"torn line\""));
    assert_non_null(strstr(seen.text, "\"bytes\":100"));
    size_t kept;
    autofree char *aside = slurp("torn-11", &kept);
    assert_int_equal(kept, 100);
    assert_memory_equal(aside, data, 100);
}

TEST(every_cut_can_be_recovered_from)
{
    size_t size;
    struct audit *audit = open_log(0, 0);
    append(audit, AUDIT_CREATE, "box", NULL);
    append(audit, AUDIT_EXEC, "box", NULL);
    append(audit, AUDIT_DELETE, "box", NULL);
    audit_close(audit);
    autofree char *data = slurp(AUDIT_CURRENT, &size);
    for (size_t cut = 0; cut <= size; cut += cut % 5 + 7) {
        assert_int_equal(cay_remove_tree_at(AT_FDCWD, dir), 0);
        assert_int_equal(mkdir(dir, 0700), 0);
        spit(AUDIT_CURRENT, data, cut);
        audit = open_log(0, 0);
        append(audit, AUDIT_EXEC, "box", NULL);
        audit_close(audit);
        struct seen seen = verify();
        if (seen.faults)
            fail_msg("cut at %zu: %s", cut, seen.text);
        assert_int_equal(seen.first, 1);
    }
}

TEST(lost_entries_leave_a_gap)
{
    size_t size;
    struct audit *audit = open_log(0, 0);
    for (int i = 0; i < 10; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    audit_close(audit);
    autofree char *data = slurp(AUDIT_CURRENT, &size);
    const char *end = data;
    for (int i = 0; i < 6; i++)
        end = strchr(end, '\n') + 1;
    spit(AUDIT_CURRENT, data, (size_t)(end - data));
    assert_int_equal(verify().fault, AUDIT_FAULT_HEAD);
    /* A daemon that comes back does not use the numbers of the lost ones again. */
    audit = open_log(0, 0);
    assert_int_equal(append(audit, AUDIT_EXEC, "box", NULL), 12);
    audit_close(audit);
    struct seen seen = verify();
    assert_int_equal(seen.fault, AUDIT_FAULT_GAP);
    assert_int_equal(seen.faults, 1);
    assert_int_equal(seen.notes, 1);
    assert_non_null(strstr(seen.text, "7 to 10"));
    /* And so when everything is gone. */
    drop(AUDIT_CURRENT);
    audit = open_log(0, 0);
    assert_int_equal(append(audit, AUDIT_EXEC, "box", NULL), 14);
    audit_close(audit);
    assert_int_equal(ask((struct audit_query){.sandbox = "box"}).n, 1);
}

TEST(a_removed_file_is_replaced)
{
    struct cay_error err = {0};
    struct audit *audit = open_log(0, 0);
    append(audit, AUDIT_EXEC, "box", NULL);
    drop(AUDIT_CURRENT);
    assert_int_equal(audit_sync(audit, &err), 0);
    assert_int_equal(append(audit, AUDIT_EXEC, "box", NULL), 3);
    audit_close(audit);
    struct seen seen = ask((struct audit_query){.action = "recovered"});
    assert_int_equal(seen.n, 1);
    assert_non_null(strstr(seen.text, "\"from_seq\":1,\"to_seq\":1"));
}

/* Writes beyond a file size limit fail half way, as on a full disk. */
static void limit_size(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_line_that_does_not_fit_leaves_no_trace)
{
    struct cay_error err = {0};
    struct stat before, after;
    char path[160];
    const struct audit_entry entry = {.who = "o", .action = AUDIT_EXEC};
    snprintf(path, sizeof(path), "%s/%s", dir, AUDIT_CURRENT);
    signal(SIGXFSZ, SIG_IGN);
    struct audit *audit = open_log(0, 0);
    for (int i = 0; i < 5; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    assert_int_equal(stat(path, &before), 0);
    for (rlim_t more = 0; more < 300; more += 60) {
        limit_size((rlim_t)before.st_size + more);
        int result = audit_append(audit, &entry, NULL, &err);
        limit_size(RLIM_INFINITY);
        assert_int_equal(result, -1);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(before.st_size, after.st_size);
    }
    assert_int_equal(append(audit, AUDIT_EXEC, "box", NULL), 6);
    audit_close(audit);
    assert_whole(1, 6);
}

static uint64_t clock_us = 2000000000000000ull;

static uint64_t jumping_clock(void)
{
    clock_us -= 3600000000ull;
    return clock_us;
}

TEST(the_order_is_that_of_seq_whatever_the_clock_does)
{
    struct cay_error err = {0};
    struct audit *audit = NULL;
    const struct audit_options options = {.wall_us = jumping_clock, .rotate_bytes = 4000};
    assert_int_equal(audit_open(dir, &options, &audit, &err), 0);
    for (int i = 0; i < 50; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    audit_close(audit);
    assert_whole(1, 50);
    /* see() wants seq to rise; the times fall. */
    assert_int_equal(ask((struct audit_query){.sandbox = "box"}).n, 50);
    struct seen late = ask((struct audit_query){.since_ms = 2000000000000ull - 8 * 3600000ull});
    assert_int_equal(late.n, 8);
    assert_int_equal(late.first, 1);
}

/* ---- tampering ------------------------------------------------------------------------------- */

static void small_log(void)
{
    struct audit *audit = open_log(1500, 0);
    append(audit, AUDIT_CREATE, "box", "acme");
    append(audit, AUDIT_EXEC, "box", "acme");
    append(audit, AUDIT_WRITE, "box", NULL);
    append(audit, AUDIT_DELETE, "box", NULL);
    audit_close(audit);
}

TEST(a_change_of_any_byte_is_found)
{
    static const char *const files[] = {"audit-0000000000000001.jsonl", AUDIT_CURRENT, AUDIT_HEAD};
    small_log();
    assert_whole(1, 4);
    for (size_t f = 0; f < COUNT(files); f++) {
        size_t size;
        autofree char *data = slurp(files[f], &size);
        for (size_t i = 0; i < size; i++) {
            data[i] ^= i % 3 ? 1 : 0x20;
            spit(files[f], data, size);
            if (verify().faults == 0)
                fail_msg("%s: byte %zu", files[f], i);
            data[i] ^= i % 3 ? 1 : 0x20;
        }
        spit(files[f], data, size);
    }
    assert_whole(1, 4);
}

/* Lines of a file as pointers into it, newlines included. */
static size_t split(char *data, size_t size, char *lines[], size_t sizes[], size_t max)
{
    size_t n = 0;
    for (char *p = data; p < data + size && n < max; n++) {
        char *end = memchr(p, '\n', (size_t)(data + size - p));
        lines[n] = p;
        sizes[n] = (size_t)(end + 1 - p);
        p = end + 1;
    }
    return n;
}

static void spit_lines(char *lines[], const size_t sizes[], const int order[], size_t n)
{
    autobuf struct cay_buf buf = CAY_BUF(1 << 20);
    for (size_t i = 0; i < n; i++)
        buf_add(&buf, lines[order[i]], sizes[order[i]]);
    spit(AUDIT_CURRENT, buf.data ? buf.data : "", buf.size);
}

TEST(deleted_moved_repeated_and_cut_off_lines_are_found)
{
    static const struct {
        int order[6];
        size_t n;
        enum audit_fault fault;
    } cases[] = {
        {{0, 1, 3, 4}, 4, AUDIT_FAULT_GAP},
        {{0, 2, 1, 3, 4}, 5, AUDIT_FAULT_GAP},
        {{0, 1, 1, 2, 3, 4}, 6, AUDIT_FAULT_ORDER},
        {{0, 1, 2, 3}, 4, AUDIT_FAULT_HEAD},
        {{0}, 0, AUDIT_FAULT_HEAD},
    };
    char *lines[8];
    size_t sizes[8], size;
    struct audit *audit = open_log(0, 0);
    for (int i = 0; i < 5; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    audit_close(audit);
    autofree char *data = slurp(AUDIT_CURRENT, &size);
    assert_int_equal(split(data, size, lines, sizes, 8), 5);
    for (size_t i = 0; i < COUNT(cases); i++) {
        spit_lines(lines, sizes, cases[i].order, cases[i].n);
        struct seen seen = verify();
        if (seen.fault != cases[i].fault)
            fail_msg("case %zu: %s", i, audit_fault_name(seen.fault));
    }
    drop(AUDIT_HEAD);
    spit(AUDIT_CURRENT, data, size);
    assert_int_equal(verify().fault, AUDIT_FAULT_HEAD);
}

TEST(a_line_sealed_anew_does_not_link)
{
    char *lines[8], hash[AUDIT_HASH];
    size_t sizes[8], size;
    struct audit *audit = open_log(0, 0);
    for (int i = 0; i < 4; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    audit_close(audit);
    autofree char *data = slurp(AUDIT_CURRENT, &size);
    assert_int_equal(split(data, size, lines, sizes, 8), 4);
    /* Another second entry, right in itself. */
    char prev[AUDIT_HASH], first[AUDIT_HASH];
    assert_true(audit_line_sealed(lines[0], sizes[0] - 1, prev, first));
    autobuf struct cay_buf forged = CAY_BUF(AUDIT_MAX_LINE), all = CAY_BUF(1 << 20);
    const struct audit_stamp stamp = {.seq = 2, .wall_us = 1, .boot = "", .prev = first};
    const struct audit_entry entry = {.who = "somebody", .action = AUDIT_EXEC};
    assert_int_equal(audit_line_make(&forged, &entry, &stamp, hash), 0);
    buf_add(&all, lines[0], sizes[0]);
    buf_add(&all, forged.data, forged.size);
    buf_str(&all, "\n");
    buf_add(&all, lines[2], sizes[2] + sizes[3]);
    spit(AUDIT_CURRENT, all.data, all.size);
    struct seen seen = verify();
    assert_int_equal(seen.fault, AUDIT_FAULT_LINK);
    assert_int_equal(seen.faults, 1);
}

TEST(missing_and_exchanged_files_are_found)
{
    struct audit *audit = open_log(2500, 0);
    for (int i = 0; i < 30; i++)
        append(audit, AUDIT_EXEC, "box", NULL);
    audit_close(audit);
    assert_whole(1, 30);
    autobuf struct cay_buf list = CAY_BUF(4096);
    autofd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(audit_store_list(fd, &list, NULL), 0);
    assert_true(list.size >= 4 * sizeof(uint64_t));
    uint64_t numbers[2];
    char second[AUDIT_NAME], third[AUDIT_NAME];
    memcpy(numbers, list.data + sizeof(uint64_t), sizeof(numbers));
    audit_store_name(numbers[0], second);
    audit_store_name(numbers[1], third);
    assert_int_equal(renameat2(fd, second, fd, third, RENAME_EXCHANGE), 0);
    assert_int_equal(verify().fault, AUDIT_FAULT_FILE);
    assert_int_equal(renameat2(fd, second, fd, third, RENAME_EXCHANGE), 0);
    assert_whole(1, 30);
    assert_int_equal(unlinkat(fd, second, 0), 0);
    assert_int_equal(verify().fault, AUDIT_FAULT_GAP);
}

/* ---- queries --------------------------------------------------------------------------------- */

static void mixed_log(uint64_t rotate)
{
    struct cay_error err = {0};
    const char *blue[] = {"team=blue", NULL};
    struct audit *audit = open_log(rotate, 0);
    for (int i = 0; i < 40; i++) {
        const struct audit_entry entry = {
            .who = "ci",
            .tenant = i % 4 == 0   ? NULL
                      : i % 4 == 1 ? "globex"
                                   : "acme",
            .action = i % 10 == 0   ? AUDIT_CREATE
                      : i % 10 == 9 ? AUDIT_DELETE
                                    : AUDIT_EXEC,
            .sandbox = i % 2 ? "acme~one" : "two",
            .labels = i % 5 == 0 ? blue : red,
            .result = i == 20 ? CAY_E_DENIED : CAY_OK,
            .detail = {.existed = i == 30, .reason = i % 10 == 9 ? "asked" : NULL}};
        assert_int_equal(audit_append(audit, &entry, NULL, &err), 0);
    }
    audit_close(audit);
}

TEST(queries_find_what_they_ask_for)
{
    mixed_log(3000);
    static const struct {
        struct audit_query query;
        uint64_t n, first, last;
    } cases[] = {
        {{0}, 40, 1, 40},
        {{.sandbox = "two"}, 20, 1, 39},
        {{.sandbox = "tw"}, 0, 0, 0},
        {{.tenant = "globex"}, 10, 2, 38},
        {{.tenant = ""}, 10, 1, 37},
        {{.label = "team=blue"}, 8, 1, 36},
        {{.label = "team"}, 40, 1, 40},
        {{.label = "team="}, 0, 0, 0},
        {{.label = "tea"}, 0, 0, 0},
        {{.label = "env=test", .sandbox = "two"}, 16, 3, 39},
        {{.action = "create"}, 4, 1, 31},
        {{.lifecycle_only = true}, 6, 1, 40},
        {{.lifecycle_only = true, .tenant = "acme"}, 3, 11, 40},
        {{.after_seq = 10}, 30, 11, 40},
        {{.after_seq = 10, .limit = 5}, 5, 11, 15},
        {{.after_seq = 1000}, 0, 0, 0},
        {{.limit = 5, .last = true}, 5, 36, 40},
        {{.limit = 5, .last = true, .sandbox = "two"}, 5, 31, 39},
        {{.limit = 500, .last = true}, 40, 1, 40},
        {{.since_ms = 1}, 40, 1, 40},
        {{.until_ms = 1}, 0, 0, 0},
        {{.since_ms = UINT64_MAX}, 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct seen seen = ask(cases[i].query);
        if (seen.n != cases[i].n || seen.first != cases[i].first || seen.last != cases[i].last)
            fail_msg("case %zu: %d entries, %d to %d", i, (int)seen.n, (int)seen.first,
                     (int)seen.last);
    }
}

static int see_one(const char *line, size_t size, void *data)
{
    see(line, size, data);
    return 1;
}

TEST(a_callback_can_end_a_query)
{
    struct seen seen = {0};
    mixed_log(3000);
    assert_int_equal(audit_query(dir, &(struct audit_query){0}, see_one, &seen, NULL), 0);
    assert_int_equal(seen.n, 1);
}

TEST(the_index_may_be_missing_old_damaged_or_foreign)
{
    static const char rubbish[5000] = "this is no database";
    size_t size;
    mixed_log(3000);
    const struct audit_query query = {.sandbox = "two"};
    assert_int_equal(ask(query).n, 20);
    drop("index.sqlite");
    assert_int_equal(ask(query).n, 20);
    /* Behind the journal: what is new is found, too. */
    autofree char *old = slurp("index.sqlite", &size);
    mixed_log(3000);
    spit("index.sqlite", old, size);
    assert_int_equal(ask(query).n, 40);
    spit("index.sqlite", rubbish, sizeof(rubbish));
    assert_int_equal(ask(query).n, 40);
    /* A page in the middle. */
    autofree char *good = slurp("index.sqlite", &size);
    assert_true(size > 3 * 4096);
    autofree char *other = malloc(size);
    assert_non_null(other);
    memcpy(other, good, size);
    memset(good + 4096, 0xa5, 2 * 4096);
    spit("index.sqlite", good, size);
    assert_int_equal(ask(query).n, 40);
    assert_int_equal(ask(query).n, 40);
    /* Of another log. */
    assert_int_equal(cay_remove_tree_at(AT_FDCWD, dir), 0);
    struct audit *audit = open_log(0, 0);
    for (int i = 0; i < 100; i++)
        append(audit, AUDIT_EXEC, "two", NULL);
    audit_close(audit);
    spit("index.sqlite", other, size);
    assert_int_equal(ask(query).n, 100);
}

TEST(no_log_is_an_error_and_an_empty_one_is_not)
{
    struct cay_error err = {0};
    struct seen seen = {0};
    struct audit_summary sum;
    assert_int_equal(audit_query(dir, &(struct audit_query){0}, see, &seen, &err), -1);
    assert_error(err, CAY_E_NOT_FOUND, dir);
    assert_int_equal(audit_verify(dir, report, &seen, &sum, &err), -1);
    assert_error(err, CAY_E_NOT_FOUND, dir);
    audit_close(open_log(0, 0));
    assert_int_equal(ask((struct audit_query){0}).n, 0);
    assert_int_equal(verify().faults, 0);
}

TEST(lifecycle_events)
{
    struct cay_error err = {0};
    struct audit_added added;
    autobuf struct cay_buf out = CAY_BUF(4096);
    struct audit *audit = open_log(0, 0);
    struct audit_entry entry = {.who = "engine",
                                .tenant = "acme",
                                .action = AUDIT_ENDED,
                                .sandbox = "acme~box",
                                .labels = red,
                                .detail = {.state = "oom", .reason = "out of memory"}};
    assert_int_equal(audit_append(audit, &entry, &added, &err), 0);
    assert_int_equal(audit_event(added.line, added.size, "acme", &out), 1);
    assert_non_null(strstr(buf_cstr(&out), "{\"seq\":1,\"time_ms\":"));
    assert_non_null(strstr(out.data, ",\"type\":\"ended\",\"sandbox\":\"box\",\"state\":\"oom\","
                                     "\"reason\":\"out of memory\",\"labels\":{\"team\":\"red\","
                                     "\"env\":\"test\"}}"));
    out.size = 0;
    assert_int_equal(audit_event(added.line, added.size, NULL, &out), 1);
    assert_non_null(strstr(buf_cstr(&out), "\"sandbox\":\"acme~box\""));
    entry.action = AUDIT_EXEC;
    assert_int_equal(audit_append(audit, &entry, &added, &err), 0);
    assert_int_equal(audit_event(added.line, added.size, NULL, &out), 0);
    entry.action = AUDIT_CREATE;
    entry.result = CAY_E_LIMIT;
    assert_int_equal(audit_append(audit, &entry, &added, &err), 0);
    assert_int_equal(audit_event(added.line, added.size, NULL, &out), 0);
    assert_int_equal(audit_event("{", 1, NULL, &out), 0);
    audit_close(audit);
}

TEST(followers_see_each_entry_once)
{
    struct cay_error err = {0};
    struct audit_follow *follow = NULL;
    const struct audit_query any = {.sandbox = "box"};
    struct seen seen = {0};
    struct audit *audit = open_log(3000, 0);
    append(audit, AUDIT_EXEC, "box", NULL);
    assert_int_equal(audit_follow_open(dir, 1, &follow, &err), 0);
    for (int i = 0; i < 100; i++) {
        append(audit, AUDIT_EXEC, i % 2 ? "box" : "other", NULL);
        if (i % 7 == 0)
            assert_int_equal(audit_follow_read(follow, &any, see, &seen, &err), 0);
    }
    assert_int_equal(audit_follow_read(follow, &any, see, &seen, &err), 0);
    assert_int_equal(audit_follow_read(follow, &any, see, &seen, &err), 0);
    assert_int_equal(seen.n, 50);
    assert_int_equal(seen.last, 101);
    audit_follow_close(follow);
    audit_close(audit);
}

/* ---- at once --------------------------------------------------------------------------------- */

static bool finished;

static void *reader_thread(void *data)
{
    uint64_t *most = data;
    while (!__atomic_load_n(&finished, __ATOMIC_ACQUIRE)) {
        struct seen seen = {0};
        struct audit_summary sum;
        struct cay_error err;
        const struct audit_query query = {.sandbox = "box", .limit = *most % 2 ? 50 : 0};
        if (audit_query(dir, &query, see, &seen, &err) < 0 ||
            audit_verify(dir, report, &seen, &sum, &err) < 0)
            return "a reader failed";
        if (seen.faults) {
            print_message("%s: %s\n", audit_fault_name(seen.fault), seen.text);
            return "a fault was seen";
        }
        *most = CAY_MAX(*most, sum.entries);
    }
    return NULL;
}

static void *sync_thread(void *data)
{
    while (!__atomic_load_n(&finished, __ATOMIC_ACQUIRE)) {
        audit_sync(data, NULL);
        usleep(500);
    }
    return NULL;
}

TEST(readers_and_syncs_while_it_is_written)
{
    pthread_t threads[3];
    uint64_t most[2] = {0, 1};
    finished = false;
    struct audit *audit = open_log(50000, 3);
    append(audit, AUDIT_EXEC, "box", NULL);
    assert_int_equal(pthread_create(&threads[0], NULL, reader_thread, &most[0]), 0);
    assert_int_equal(pthread_create(&threads[1], NULL, reader_thread, &most[1]), 0);
    assert_int_equal(pthread_create(&threads[2], NULL, sync_thread, audit), 0);
    for (int i = 0; i < 6000; i++) {
        append(audit, AUDIT_EXEC, i % 3 ? "box" : "other", "acme");
        if (i % 200 == 0)
            usleep(10000);
    }
    __atomic_store_n(&finished, true, __ATOMIC_RELEASE);
    for (size_t i = 0; i < COUNT(threads); i++) {
        void *said = NULL;
        pthread_join(threads[i], &said);
        if (said)
            fail_msg("%s", (char *)said);
    }
    audit_close(audit);
    assert_true(most[0] > 1 && most[1] > 1);
    assert_int_equal(verify().faults, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_says_what_was_done),
        cmocka_unit_test(what_callers_choose_is_bounded),
        cmocka_unit_test(numbers_and_times_beyond_all_bounds),
        cmocka_unit_test(a_list_is_cut_between_characters),
        cmocka_unit_test(a_label_is_there_once),
        cmocka_unit_test(lines_that_are_none),
        cmocka_unit_test(times),
        T(the_chain_goes_on_over_rotation_and_restarts),
        T(a_log_has_one_writer),
        T(old_files_are_pruned_and_that_is_told),
        T(a_torn_line_is_put_aside),
        T(every_cut_can_be_recovered_from),
        T(lost_entries_leave_a_gap),
        T(a_removed_file_is_replaced),
        T(a_line_that_does_not_fit_leaves_no_trace),
        T(the_order_is_that_of_seq_whatever_the_clock_does),
        T(a_change_of_any_byte_is_found),
        T(deleted_moved_repeated_and_cut_off_lines_are_found),
        T(a_line_sealed_anew_does_not_link),
        T(missing_and_exchanged_files_are_found),
        T(queries_find_what_they_ask_for),
        T(a_callback_can_end_a_query),
        T(the_index_may_be_missing_old_damaged_or_foreign),
        T(no_log_is_an_error_and_an_empty_one_is_not),
        T(lifecycle_events),
        T(followers_see_each_entry_once),
        T(readers_and_syncs_while_it_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
