/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: messages and descriptors over a socket pair, in pieces, in heaps, and from a peer that
 * lies. */
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"
#include "test.h"
#include "wire/chan.h"
#include "wire/version.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

struct ends {
    struct chan chan;
    int peer;
};

static struct ends open_ends(void)
{
    struct ends ends;
    int pair[2];
    assert_int_equal(sock_pair(pair), 0);
    chan_init(&ends.chan, pair[0]);
    ends.peer = pair[1];
    return ends;
}

static void close_ends(struct ends *ends)
{
    chan_done(&ends->chan);
    close_fd(&ends->peer);
}

TEST(messages_with_descriptors)
{
    struct ends ends = open_ends();
    struct cay_error err;
    struct stat a, b;
    autofd int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct msg out = {.type = INIT_SPAWN, .tag = 5, .cwd = "/"};
    assert_int_equal(chan_send(ends.peer, &out, (int[]){null, 0}, 2, &err), 0);
    automsg struct msg in = {0};
    assert_int_equal(chan_recv(&ends.chan, &in, &err), 1);
    assert_int_equal(in.tag, 5);
    int first = chan_take_fd(&ends.chan), second = chan_take_fd(&ends.chan);
    assert_int_equal(chan_take_fd(&ends.chan), -1);
    assert_int_equal(fstat(first, &a), 0);
    assert_int_equal(fstat(null, &b), 0);
    assert_true(a.st_rdev == b.st_rdev && a.st_ino == b.st_ino);
    close(first);
    close(second);
    close_ends(&ends);
}

TEST(several_in_one_read_come_out_one_by_one)
{
    struct ends ends = open_ends();
    struct cay_error err;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(
            chan_send(ends.peer, &(struct msg){.type = MSG_OK, .tag = i}, NULL, 0, &err), 0);
    for (uint32_t i = 0; i < 50; i++) {
        automsg struct msg in = {0};
        assert_int_equal(chan_recv(&ends.chan, &in, &err), 1);
        assert_int_equal(in.tag, i);
    }
    close_fd(&ends.peer);
    struct msg in = {0};
    assert_int_equal(chan_recv(&ends.chan, &in, &err), 0);
    close_ends(&ends);
}

TEST(byte_by_byte)
{
    struct ends ends = open_ends();
    struct cay_error err;
    autobuf struct cay_buf buf = CAY_BUF(1000);
    automsg struct msg in = {0};
    assert_int_equal(msg_encode(&buf, &(struct msg){.type = FS_STAT, .path = "/etc"}, 0), 0);
    for (size_t i = 0; i < buf.size; i++) {
        assert_int_equal(chan_pop(&ends.chan, &in, &err), 0);
        assert_int_equal(sock_send(ends.peer, buf.data + i, 1, NULL, 0), 1);
        assert_int_equal(chan_fill(&ends.chan), 1);
    }
    assert_int_equal(chan_pop(&ends.chan, &in, &err), 1);
    assert_string_equal(in.path, "/etc");
    assert_int_equal(ends.chan.minor, WIRE_MINOR);
    close_ends(&ends);
}

static void *send_large(void *arg)
{
    static char bytes[CAY_MAX_FRAME - 100];
    struct msg msg = {.type = OP_EXEC, .data = {bytes, sizeof(bytes)}};
    for (int i = 0; i < 3; i++)
        chan_send(*(int *)arg, &msg, NULL, 0, NULL);
    return NULL;
}

TEST(the_largest_frame_passes)
{
    struct ends ends = open_ends();
    struct cay_error err;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, send_large, &ends.peer), 0);
    for (int i = 0; i < 3; i++) {
        automsg struct msg in = {0};
        assert_int_equal(chan_recv(&ends.chan, &in, &err), 1);
        assert_int_equal(in.data.size, CAY_MAX_FRAME - 100);
    }
    pthread_join(thread, NULL);
    close_ends(&ends);
}

TEST(a_message_beyond_the_maximum_is_not_sent)
{
    static char bytes[CAY_MAX_FRAME + 1];
    struct ends ends = open_ends();
    struct cay_error err;
    struct msg msg = {.type = OP_EXEC, .data = {bytes, sizeof(bytes)}};
    assert_int_equal(chan_send(ends.peer, &msg, NULL, 0, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "larger");
    close_ends(&ends);
}

TEST(nonsense_ends_the_conversation)
{
    struct ends ends = open_ends();
    struct cay_error err;
    struct msg in = {0};
    assert_int_equal(sock_send(ends.peer, "GET / HTTP/1.1\r\n\r\n", 18, NULL, 0), 18);
    assert_int_equal(chan_recv(&ends.chan, &in, &err), -1);
    assert_error(err, CAY_E_INVALID, "frame");
    close_ends(&ends);
}

/* The major version is the eighth byte of a frame. */
static int receive_as(uint8_t major, const struct msg *msg, size_t cut, struct msg *in,
                      struct cay_error *err)
{
    struct ends ends = open_ends();
    autobuf struct cay_buf buf = CAY_BUF(1000);
    assert_int_equal(msg_encode(&buf, msg, 0), 0);
    buf.data[7] = (char)major;
    assert_int_equal(buf_add(&ends.chan.in, buf.data, buf.size - cut), 0);
    int popped = chan_pop(&ends.chan, in, err);
    if (popped > 0)
        msg_done(in);
    close_ends(&ends);
    return popped;
}

TEST(another_major_version_is_told_at_its_first_header)
{
    struct cay_error err = {0};
    struct msg in = {0};
    const struct msg exec = {.type = OP_EXEC, .cwd = "/"};
    const struct msg stop = {.type = OP_STOP, .timeout_ms = 5};
    assert_int_equal(receive_as(WIRE_MAJOR + 1, &exec, 0, &in, &err), -1);
    assert_error(err, CAY_E_VERSION, "this is " WIRE_WHO);
    assert_int_equal(receive_as(WIRE_MAJOR + 1, &exec, 3, &in, &err), -1);
    assert_int_equal(receive_as(WIRE_MAJOR + 1, &stop, 3, &in, &err), 0);
    assert_int_equal(receive_as(WIRE_MAJOR + 1, &stop, 0, &in, &err), 1);
    assert_int_equal(in.timeout_ms, 5);
    assert_int_equal(receive_as(0, &stop, 0, &in, &err), -1);
}

TEST(announced_descriptors_must_be_there)
{
    struct ends ends = open_ends();
    struct cay_error err;
    autobuf struct cay_buf buf = CAY_BUF(1000);
    struct msg in = {0};
    assert_int_equal(msg_encode(&buf, &(struct msg){.type = INIT_SPAWNED, .pid = 2}, 1), 0);
    assert_int_equal(sock_send(ends.peer, buf.data, buf.size, NULL, 0), (int)buf.size);
    assert_int_equal(chan_recv(&ends.chan, &in, &err), -1);
    assert_error(err, CAY_E_INVALID, "descriptors");
    close_ends(&ends);
}

TEST(a_flood_of_descriptors_leaks_none)
{
    int before = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(before);
    struct ends ends = open_ends();
    struct cay_error err;
    int fds[FRAME_MAX_FDS] = {0};
    for (int i = 0; i < 5; i++)
        assert_int_equal(chan_send(ends.peer, &(struct msg){.type = MSG_OK}, fds, COUNT(fds), &err),
                         0);
    for (int i = 0; i < 5; i++) {
        struct msg in = {0};
        chan_recv(&ends.chan, &in, &err);
        assert_true(ends.chan.n_fds <= FRAME_MAX_FDS);
        msg_done(&in);
    }
    close_ends(&ends);
    int after = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(after, before);
    close(after);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_with_descriptors),
        cmocka_unit_test(several_in_one_read_come_out_one_by_one),
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(the_largest_frame_passes),
        cmocka_unit_test(a_message_beyond_the_maximum_is_not_sent),
        cmocka_unit_test(nonsense_ends_the_conversation),
        cmocka_unit_test(another_major_version_is_told_at_its_first_header),
        cmocka_unit_test(announced_descriptors_must_be_there),
        cmocka_unit_test(a_flood_of_descriptors_leaks_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
