/* SPDX-License-Identifier: Apache-2.0 */
/* Spools: what is kept, what a follower needs, and what is dropped; and the events of a stream. */
#include "base/util.h"
#include "keeper/spool.h"
#include "test.h"
#include "wire/follow.h"

#include <fcntl.h>
#include <string.h>

#define MAX 100000u

static char letter(uint64_t offset)
{
    return (char)('a' + offset % 23);
}

/* Appends bytes that tell their own offset. */
static void add(struct spool *spool, int stream, size_t size)
{
    char bytes[8192];
    for (size_t done = 0; done < size;) {
        size_t n = CAY_MIN(size - done, sizeof(bytes));
        for (size_t i = 0; i < n; i++)
            bytes[i] = letter(spool->end + i);
        spool_append(spool, AT_FDCWD, stream, bytes, n);
        done += n;
    }
}

/* Reads from `offset` to the end; every byte must be the one of its offset. */
static uint64_t read_all(const struct spool *spool, uint64_t offset)
{
    char bytes[5000];
    int stream;
    for (size_t n; (n = spool_read(spool, &offset, bytes, sizeof(bytes), &stream)) > 0; offset += n)
        for (size_t i = 0; i < n; i++)
            assert_int_equal(bytes[i], letter(offset + i));
    return offset;
}

TEST(the_newest_bytes_are_kept)
{
    struct spool spool;
    spool_init(&spool, MAX);
    add(&spool, 1, 1000000);
    assert_int_equal(spool.end, 1000000);
    assert_int_equal(spool_size(&spool), MAX);
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    spool_done(&spool);
}

/* Places in either stream, also of what is not kept any more. */
TEST(streams_are_counted_apart)
{
    struct spool spool;
    spool_init(&spool, MAX);
    add(&spool, 2, 6);
    add(&spool, 1, 150000);
    add(&spool, 2, 10);
    add(&spool, 1, 20);
    assert_int_equal(spool_errors(&spool, spool.start), 6);
    assert_int_equal(spool_errors(&spool, 150006), 6);
    assert_int_equal(spool_errors(&spool, 150010), 10);
    assert_int_equal(spool_errors(&spool, spool.end), 16);
    assert_int_equal(spool_find(&spool, 0, 0), spool.start);
    assert_int_equal(spool_find(&spool, 149990, 16), 149996);
    assert_int_equal(spool_find(&spool, 150000, 7), 150007);
    assert_int_equal(spool_find(&spool, 150005, 16), 150021);
    assert_int_equal(spool_find(&spool, 150020, 16), spool.end);
    assert_int_equal(spool_find(&spool, 999999, 999999), spool.end);
    spool_done(&spool);
}

TEST(what_a_follower_needs_is_kept_too)
{
    struct spool spool;
    spool_init(&spool, MAX);
    add(&spool, 1, 50000);
    spool.floor = 20000;
    add(&spool, 1, 500000);
    assert_int_equal(spool.start, 20000);
    assert_int_equal(read_all(&spool, 20000), 550000);
    spool_trim(&spool, 300000);
    assert_int_equal(spool.start, 20000);
    spool.floor = 400000;
    spool_trim(&spool, 300000);
    assert_int_equal(spool.start, 300000);
    spool.floor = UINT64_MAX;
    add(&spool, 1, 1);
    assert_int_equal(spool_size(&spool), MAX);
    spool_trim(&spool, UINT64_MAX);
    assert_int_equal(spool_size(&spool), 0);
    assert_int_equal(spool.end, 550001);
    spool_done(&spool);
}

TEST(streams_that_change_all_the_time)
{
    struct spool spool;
    spool_init(&spool, 10 * MAX);
    spool.floor = 0;
    for (int i = 0; !spool_crowded(&spool); i++)
        add(&spool, 1 + i % 2, 1);
    assert_int_equal(spool.start, 0);
    spool.floor = UINT64_MAX;
    for (int i = 0; i < 200000; i++)
        add(&spool, 1 + i % 2, 1);
    assert_true(spool.start > 0 && spool.n_switches <= 65536);
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    spool_done(&spool);
}

TEST(memory_for_changes_of_the_stream_is_given_back)
{
    struct spool spool;
    spool_init(&spool, 10 * MAX);
    for (int i = 0; i < 60000; i++)
        add(&spool, 1 + i % 2, 1);
    size_t before = spool_switch_memory(&spool);
    assert_true(before >= 60000 * sizeof(uint64_t));
    spool.floor = 30000;
    spool_shed(&spool, 256);
    assert_int_equal(spool.start, 30000); /* a follower needs the rest */
    spool.floor = UINT64_MAX;
    spool_shed(&spool, 256);
    assert_true(spool.n_switches <= 256 && spool.start == 60000 - 256);
    assert_true(spool_switch_memory(&spool) <= 1024 * sizeof(uint64_t));
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    add(&spool, 1, 10);
    add(&spool, 2, 10);
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    spool_done(&spool);
}

TEST(a_ring_keeps_as_much_as_a_file_with_holes)
{
    struct spool spool;
    spool_init(&spool, 5u << 20);
    add(&spool, 1, 40000000);
    assert_true(spool.ring > 0);
    assert_int_equal(spool_size(&spool), 5u << 20);
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    spool.floor = spool.start;
    add(&spool, 2, 2000000); /* what is left in the pipes of a process that ends */
    assert_int_equal(spool.start, spool.floor);
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    add(&spool, 1, 20000000); /* and what no ring has room for */
    assert_int_equal(spool_size(&spool), spool.ring);
    assert_int_equal(read_all(&spool, spool.start), spool.end);
    spool.floor = UINT64_MAX;
    spool_trim(&spool, spool.end - 1000);
    assert_int_equal(read_all(&spool, spool.end - 1000), spool.end);
    spool_done(&spool);
}

static struct msg output(uint64_t offset, size_t size)
{
    static const char bytes[64];
    return (struct msg){.type = MSG_OUTPUT, .stream = 1, .offset = offset, .data = {bytes, size}};
}

static void expect(struct follow *follow, const struct msg *msg, enum cay_event_kind kind,
                   uint64_t offset, size_t size)
{
    struct cay_event event;
    struct cay_error err;
    assert_int_equal(follow_take(follow, msg, &event, &err), 1);
    assert_int_equal(event.kind, kind);
    assert_int_equal(event.offset, offset);
    assert_int_equal(event.size, size);
}

TEST(missing_bytes_are_an_event)
{
    struct follow follow = {.next = 10};
    struct msg msg = output(30, 5), end = {.type = MSG_EXIT, .offset = 40, .exit_code = 7};
    expect(&follow, &msg, CAY_EVENT_GAP, 10, 20);
    assert_true(follow.gap);
    expect(&follow, &msg, CAY_EVENT_OUTPUT, 30, 5);
    assert_false(follow.gap);
    expect(&follow, &end, CAY_EVENT_GAP, 35, 5);
    assert_false(follow.over);
    expect(&follow, &end, CAY_EVENT_EXIT, 40, 0);
    assert_true(follow.over);
}

TEST(bytes_missing_at_the_end_are_an_event)
{
    struct follow follow = {.next = 10};
    struct msg ok = {.type = MSG_OK, .offset = 30, .code = CAY_E_LIMIT};
    struct cay_event event;
    expect(&follow, &ok, CAY_EVENT_GAP, 10, 20);
    assert_int_equal(follow_take(&follow, &ok, &event, NULL), 0);
    assert_true(follow.over);
}

TEST(whatever_is_kept_is_no_gap)
{
    struct follow follow = {.next = CAY_FROM_KEPT};
    struct msg first = output(5000, 64), next = output(5064, 1), ok = {.type = MSG_OK};
    struct cay_event event;
    expect(&follow, &first, CAY_EVENT_OUTPUT, 5000, 64);
    expect(&follow, &next, CAY_EVENT_OUTPUT, 5064, 1);
    assert_int_equal(follow_take(&follow, &ok, &event, NULL), 0);
    assert_true(follow.over);
}

TEST(an_error_ends_it)
{
    struct follow follow = {0};
    struct msg msg = {.type = MSG_ERROR, .code = CAY_E_STALLED, .text = "cut"};
    struct cay_event event;
    struct cay_error err;
    assert_int_equal(follow_take(&follow, &msg, &event, &err), -1);
    assert_int_equal(err.code, CAY_E_STALLED);
    assert_true(follow.over);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_bytes_are_kept),
        cmocka_unit_test(streams_are_counted_apart),
        cmocka_unit_test(what_a_follower_needs_is_kept_too),
        cmocka_unit_test(streams_that_change_all_the_time),
        cmocka_unit_test(memory_for_changes_of_the_stream_is_given_back),
        cmocka_unit_test(a_ring_keeps_as_much_as_a_file_with_holes),
        cmocka_unit_test(missing_bytes_are_an_event),
        cmocka_unit_test(bytes_missing_at_the_end_are_an_event),
        cmocka_unit_test(whatever_is_kept_is_no_gap),
        cmocka_unit_test(an_error_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
