/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel keeps for a process and no control group counts, or what all of the host has one
 * limit for. Each attack takes a stated amount with some processes, holds it for SECONDS, and wins
 * if it got all of it.
 */
#include "probe.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define WORKERS_MAX 1024

typedef long taking(long wanted);

static void raise_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Bytes of the locks of one process; alternate bytes, so that none are merged. */
static long take_locks(long wanted)
{
    long got = 0;

    for (int fd; got < wanted && (fd = memfd_create("locks", 0)) >= 0;)
        for (int i = 0; i < 500 && got < wanted; i++) {
            struct flock lock = {.l_type = F_WRLCK, .l_start = 2 * i, .l_len = 1};
            if (fcntl(fd, F_SETLK, &lock) < 0)
                return got;
            got += 192;
        }
    return got;
}

static long take_files(long wanted)
{
    long got = 0;

    while (got < wanted && eventfd(0, 0) >= 0)
        got++;
    return got;
}

static int loopback(int type, struct sockaddr_in *at)
{
    socklen_t size = sizeof(*at);
    int sock = socket(AF_INET, type, 0);

    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (sock >= 0 && bind(sock, (struct sockaddr *)at, size) == 0)
        getsockname(sock, (struct sockaddr *)at, &size);
    return sock;
}

/* What is there to be received, in memory that the kernel says is in use for it. */
static long memory_of(int sock)
{
    uint32_t figures[9];
    socklen_t size = sizeof(figures);

    return getsockopt(sock, SOL_SOCKET, 55 /* SO_MEMINFO */, figures, &size) < 0
               ? 0
               : (long)figures[0] + (figures[2] > figures[5] ? figures[2] : figures[5]);
}

static long take_udp(long wanted)
{
    static char packet[60000];
    struct sockaddr_in at;
    long got = 0;

    for (int sock; got < wanted && (sock = loopback(SOCK_DGRAM, &at)) >= 0;) {
        long before = -1;
        for (long now = 0; now > before; now = memory_of(sock)) {
            before = now;
            if (sendto(sock, packet, sizeof(packet), MSG_DONTWAIT, (struct sockaddr *)&at,
                       sizeof(at)) < 0)
                break;
        }
        got += memory_of(sock);
        if (memory_of(sock) == 0)
            break;
    }
    return got;
}

static long take_tcp(long wanted)
{
    static char bytes[60000];
    struct sockaddr_in at;
    long got = 0;
    int listener = loopback(SOCK_STREAM, &at);

    if (listen(listener, 128) < 0)
        return 0;
    while (got < wanted) {
        int sock = socket(AF_INET, SOCK_STREAM, 0), other;
        if (sock < 0 || connect(sock, (struct sockaddr *)&at, sizeof(at)) < 0 ||
            (other = accept(listener, NULL, NULL)) < 0)
            break;
        for (int tries = 0; tries < 20; tries++)
            if (send(sock, bytes, sizeof(bytes), MSG_DONTWAIT) < 0)
                sleep_ms(1);
            else
                tries = 0;
        long memory = memory_of(sock) + memory_of(other);
        if (memory < (64 << 10))
            break;
        got += memory;
    }
    return got;
}

/* Answers that nobody reads. */
static long take_netlink(long wanted)
{
    struct {
        struct nlmsghdr head;
        struct rtgenmsg body;
    } ask = {{.nlmsg_len = sizeof(ask), .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
             {.rtgen_family = AF_UNSPEC}};
    long got = 0;
    int large = 4 << 20;

    ask.head.nlmsg_type = 1023; /* no such request: refused with an answer */
    for (int sock; got < wanted && (sock = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)) >= 0;) {
        long before = -1;
        setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &large, sizeof(large));
        for (long now = 0; now > before && got + now < wanted; now = memory_of(sock)) {
            before = now;
            for (int i = 0; i < 16; i++)
                if (send(sock, &ask, sizeof(ask), MSG_DONTWAIT) < 0)
                    break;
        }
        got += memory_of(sock);
        if (memory_of(sock) == 0)
            break;
    }
    return got;
}

static long take_terminals(long wanted)
{
    long got = 0;

    while (got < wanted && open("/dev/pts/ptmx", O_RDWR | O_NOCTTY) >= 0)
        got++;
    return got;
}

static void work(taking *take, long wanted, int ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    raise_files();
    long got = take(wanted);
    if (write(ready, &got, sizeof(got)) == (ssize_t)sizeof(got))
        sleep_ms(60000);
    _exit(0);
}

/* AMOUNT PROCESSES SECONDS */
static int hoard(char **argv, long unit, taking *take, const char *what)
{
    long wanted = atol(argv[0]) * unit, workers = atol(argv[1]), got = 0, one;
    pid_t pids[WORKERS_MAX];
    int ready[2];

    if (workers < 1 || workers > WORKERS_MAX || pipe(ready) < 0)
        return untried("workers");
    for (long i = 0; i < workers; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            work(take, wanted / workers + 1, ready[1]);
        if (pids[i] < 0)
            workers = i;
    }
    for (long i = 0; i < workers; i++)
        if (read(ready[0], &one, sizeof(one)) == (ssize_t)sizeof(one))
            got += one;
    printf("holding\n");
    fflush(stdout);
    sleep_ms(atol(argv[2]) * 1000);
    for (long i = 0; i < workers; i++)
        end_child(pids[i]);
    return got >= wanted ? won("%ld %s", got / unit, what)
                         : refused_by("%ld of %ld %s", got / unit, wanted / unit, what);
}

static int locks(int argc, char **argv)
{
    (void)argc;
    return hoard(argv, 1 << 20, take_locks, "MiB of file locks");
}

static int udp(int argc, char **argv)
{
    (void)argc;
    return hoard(argv, 1 << 20, take_udp, "MiB of UDP buffers");
}

static int tcp(int argc, char **argv)
{
    (void)argc;
    return hoard(argv, 1 << 20, take_tcp, "MiB of TCP buffers");
}

static int netlink(int argc, char **argv)
{
    (void)argc;
    return hoard(argv, 1 << 20, take_netlink, "MiB of netlink buffers");
}

static int files(int argc, char **argv)
{
    (void)argc;
    return hoard(argv, 1, take_files, "open files");
}

/* The same few files in many processes, which is no hoard. */
static int shared_files(int argc, char **argv)
{
    (void)argc;
    raise_files();
    for (int i = 0; i < 2000; i++)
        if (eventfd(0, 0) < 0)
            break;
    return hoard(argv, 1, take_files, "open files");
}

static int terminals(int argc, char **argv)
{
    (void)argc;
    if (on_the_host())
        return untried("never on the host");
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return refused("unshare");
    if (mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666") < 0)
        return refused("mount");
    return hoard(argv, 1, take_terminals, "terminals");
}

const struct attack hoard_attacks[] = {
    {"hoard-locks", locks, 3},
    {"hoard-udp", udp, 3},
    {"hoard-tcp", tcp, 3},
    {"hoard-netlink", netlink, 3},
    {"hoard-files", files, 3},
    {"hoard-shared-files", shared_files, 3},
    {"hoard-terminals", terminals, 3},
    {NULL, NULL, 0},
};
