/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and descriptors over a socket pair. */
#include "base/sock.h"
#include "base/util.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>

TEST(descriptors_travel_and_arrive_close_on_exec)
{
    int pair[2], got[4];
    size_t n = 0;
    char text[8] = "";
    assert_int_equal(sock_pair(pair), 0);
    assert_int_equal(fcntl(pair[0], F_GETFD), FD_CLOEXEC);
    assert_int_equal(sock_send(pair[0], "hi", 3, (int[]){0, 1}, 2), 3);
    assert_int_equal(sock_recv(pair[1], text, sizeof(text), got, &n, COUNT(got)), 3);
    assert_string_equal(text, "hi");
    assert_int_equal(n, 2);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(fcntl(got[i], F_GETFD), FD_CLOEXEC);
        close(got[i]);
    }
    close(pair[0]);
    assert_int_equal(sock_recv(pair[1], text, sizeof(text), got, &n, COUNT(got)), 0);
    close(pair[1]);
}

static size_t open_descriptors(void)
{
    size_t n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

TEST(descriptors_that_nobody_wants_are_closed)
{
    int pair[2], got[1];
    size_t n = 0;
    char byte;
    assert_int_equal(sock_pair(pair), 0);
    size_t before = open_descriptors();
    assert_int_equal(sock_send(pair[0], "x", 1, (int[]){0, 0, 0}, 3), 1);
    assert_int_equal(sock_recv(pair[1], &byte, 1, got, &n, 1), 1);
    assert_int_equal(n, 1);
    assert_int_equal(open_descriptors(), before + 1);
    close(got[0]);
    assert_int_equal(sock_send(pair[0], "x", 1, (int[]){0}, 1), 1);
    assert_int_equal(sock_recv(pair[1], &byte, 1, NULL, NULL, 0), 1);
    assert_int_equal(open_descriptors(), before);
    close(pair[0]);
    close(pair[1]);
}

TEST(too_many_descriptors_and_dead_peers_are_errors)
{
    int pair[2], many[SOCK_MAX_FDS + 1] = {0};
    assert_int_equal(sock_pair(pair), 0);
    assert_int_equal(sock_send(pair[0], "x", 1, many, COUNT(many)), -1);
    assert_int_equal(errno, EINVAL);
    close(pair[1]);
    assert_int_equal(sock_send(pair[0], "x", 1, NULL, 0), -1);
    assert_int_equal(errno, EPIPE);
    close(pair[0]);
}

static void *drain(void *arg)
{
    char buffer[4096];
    uintptr_t sum = 0;
    for (ssize_t n; (n = read(*(int *)arg, buffer, sizeof(buffer))) > 0;)
        sum += (uintptr_t)n;
    return (void *)sum;
}

TEST(send_all_waits_on_a_full_socket)
{
    static char megabyte[1 << 20];
    int pair[2];
    pthread_t thread;
    void *sum;
    assert_int_equal(sock_pair(pair), 0);
    assert_int_equal(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&thread, NULL, drain, &pair[1]), 0);
    assert_int_equal(sock_send_all(pair[0], megabyte, sizeof(megabyte), NULL, 0), 0);
    close(pair[0]);
    pthread_join(thread, &sum);
    assert_int_equal((uintptr_t)sum, sizeof(megabyte));
    close(pair[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_travel_and_arrive_close_on_exec),
        cmocka_unit_test(descriptors_that_nobody_wants_are_closed),
        cmocka_unit_test(too_many_descriptors_and_dead_peers_are_errors),
        cmocka_unit_test(send_all_waits_on_a_full_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
