/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets, routes, and what processes share across sandboxes: SysV IPC, message queues, names. */
#include "probe.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef TCP_REPAIR
#define TCP_REPAIR 19
#endif

/* socket FAMILY TYPE PROTOCOL */
static int make_socket(int argc, char **argv)
{
    (void)argc;
    return judge(socket(atoi(argv[0]), atoi(argv[1]), atoi(argv[2])), "socket");
}

/* A connected pair of TCP sockets on our own loopback. */
static int tcp_pair(int pair[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        return -1;
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(pair[0], (struct sockaddr *)&address, size) < 0)
        return -1;
    pair[1] = accept(listener, NULL, NULL);
    close(listener);
    return pair[1] < 0 ? -1 : 0;
}

static int tcp_option(int argc, char **argv)
{
    int pair[2], on = 1;

    (void)argc;
    if (strcmp(argv[0], "TCP_REPAIR") == 0) {
        pair[0] = socket(AF_INET, SOCK_STREAM, 0);
        return judge(setsockopt(pair[0], IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)), "TCP_REPAIR");
    }
    if (tcp_pair(pair) < 0)
        return untried("a TCP connection on loopback");
    /* ENOENT: the kernel looked for the protocol, so nothing stood before it. */
    if (setsockopt(pair[0], IPPROTO_TCP, TCP_ULP, "tls", 4) < 0 && errno != ENOENT)
        return refused("TCP_ULP");
    return won("TCP_ULP reached the kernel");
}

/* socket-filter NAME: a program of the kernel's that runs for each packet; its memory is the
 * host's. */
static int socket_filter(int argc, char **argv)
{
    static const struct {
        const char *name;
        int option;
    } options[] = {
        {"FILTER", SO_ATTACH_FILTER},
        {"BPF", SO_ATTACH_BPF},
        {"REUSEPORT_CBPF", SO_ATTACH_REUSEPORT_CBPF},
        {"REUSEPORT_EBPF", SO_ATTACH_REUSEPORT_EBPF},
    };
    struct sock_filter all[] = {{BPF_RET | BPF_K, 0, 0, 0xffff}};
    struct sock_fprog program = {1, all};
    int fd = socket(AF_INET, SOCK_DGRAM, 0), none = -1, on = 1;

    (void)argc;
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) < 0)
        return untried("socket");
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        int extended = strstr(options[i].name, "BPF") && !strstr(options[i].name, "CBPF");

        if (strcmp(options[i].name, argv[0]) == 0)
            return judge_reached(setsockopt(fd, SOL_SOCKET, options[i].option,
                                            extended ? (void *)&none : (void *)&program,
                                            extended ? sizeof(none) : sizeof(program)),
                                 argv[0]);
    }
    return untried("no such option");
}

static int fill(const char *host, int port, struct sockaddr_storage *out, socklen_t *size)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;

    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)port);
        *size = sizeof(*four);
        return 0;
    }
    if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        *size = sizeof(*six);
        return 0;
    }
    return -1;
}

/* connect HOST PORT TEXT: is there a server that answers with TEXT? Waits two seconds at most. */
static int tcp_connect(int argc, char **argv)
{
    struct sockaddr_storage address;
    struct timeval limit = {2, 0};
    socklen_t size;
    char line[256];
    ssize_t n;
    int fd;

    (void)argc;
    if (fill(argv[0], atoi(argv[1]), &address, &size) < 0)
        return untried("address");
    fd = socket(address.ss_family, SOCK_STREAM, 0);
    if (fd < 0)
        return refused("socket");
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&address, size) < 0)
        return refused("connect");
    n = recv(fd, line, sizeof(line) - 1, 0);
    line[n > 0 ? n : 0] = 0;
    if (strstr(line, argv[2]))
        return won("the host's server answered");
    return refused_by("another server answered");
}

/* route HOST: connecting a datagram socket sends nothing and only asks for a route. */
static int route(int argc, char **argv)
{
    struct sockaddr_storage address;
    socklen_t size;
    int fd;

    (void)argc;
    if (fill(argv[0], 53, &address, &size) < 0)
        return untried("address");
    fd = socket(address.ss_family, SOCK_DGRAM, 0);
    if (fd < 0)
        return refused("socket");
    return judge(connect(fd, (struct sockaddr *)&address, size), "route");
}

/* datagram HOST PORT TEXT: the test looks whether it arrived. */
static int datagram(int argc, char **argv)
{
    struct sockaddr_storage address;
    socklen_t size;
    int fd;

    (void)argc;
    if (fill(argv[0], atoi(argv[1]), &address, &size) < 0)
        return untried("address");
    fd = socket(address.ss_family, SOCK_DGRAM, 0);
    return judge(sendto(fd, argv[2], strlen(argv[2]), 0, (struct sockaddr *)&address, size),
                 "sendto");
}

/* Any interface besides lo? */
static int interfaces(int argc, char **argv)
{
    FILE *file = fopen("/proc/self/net/dev", "re");
    char line[512], name[64];

    (void)argc;
    (void)argv;
    if (!file)
        return untried("/proc/self/net/dev");
    while (fgets(line, sizeof(line), file)) {
        if (strchr(line, ':') && sscanf(line, " %63[^:]", name) == 1 && strcmp(name, "lo") != 0)
            return won("interface %s", name);
    }
    fclose(file);
    return refused_by("only lo");
}

static long netlink_ask(struct nlmsghdr *header)
{
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    char answer[4096];
    struct nlmsgerr *error;
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

    if (fd < 0)
        return -1;
    header->nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
    if (sendto(fd, header, header->nlmsg_len, 0, (struct sockaddr *)&kernel, sizeof(kernel)) < 0 ||
        recv(fd, answer, sizeof(answer), 0) < (ssize_t)sizeof(struct nlmsghdr))
        return -1;
    error = NLMSG_DATA((struct nlmsghdr *)answer);
    errno = -error->error;
    return error->error ? -1 : 0;
}

static void add_attribute(struct nlmsghdr *header, uint16_t type, const void *data, size_t size)
{
    struct rtattr *attribute = (struct rtattr *)((char *)header + NLMSG_ALIGN(header->nlmsg_len));

    attribute->rta_type = type;
    attribute->rta_len = (uint16_t)RTA_LENGTH(size);
    memcpy(RTA_DATA(attribute), data, size);
    header->nlmsg_len = NLMSG_ALIGN(header->nlmsg_len) + RTA_ALIGN(attribute->rta_len);
}

/* netlink link|address|route: give ourselves a pair of interfaces, an address, a default route. */
static int netlink_add(int argc, char **argv)
{
    struct {
        struct nlmsghdr header;
        union {
            struct ifinfomsg link;
            struct ifaddrmsg address;
            struct rtmsg route;
        } body;
        char attributes[256];
    } request = {0};
    struct {
        struct nlmsghdr header;
        struct ifinfomsg link;
    } up = {{.nlmsg_len = sizeof(up), .nlmsg_type = RTM_NEWLINK},
            {.ifi_index = 1, .ifi_flags = IFF_UP, .ifi_change = IFF_UP}};
    uint32_t value = htonl(0xc0a8fe01), lo = 1;

    (void)argc;
    netlink_ask(
        &up.header); /* in a new namespace lo is down; where it is up this changes nothing */
    request.header.nlmsg_flags = NLM_F_CREATE | NLM_F_EXCL;
    if (strcmp(argv[0], "link") == 0) {
        char info[] = {8, 0, IFLA_INFO_KIND, 0, 'v', 'e', 't', 'h'};

        request.header.nlmsg_type = RTM_NEWLINK;
        request.header.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg));
        add_attribute(&request.header, IFLA_LINKINFO, info, sizeof(info));
    } else if (strcmp(argv[0], "address") == 0) {
        request.header.nlmsg_type = RTM_NEWADDR;
        request.header.nlmsg_len = NLMSG_LENGTH(sizeof(struct ifaddrmsg));
        request.body.address = (struct ifaddrmsg){AF_INET, 32, 0, 0, 1};
        add_attribute(&request.header, IFA_LOCAL, &value, 4);
    } else {
        request.header.nlmsg_type = RTM_NEWROUTE;
        request.header.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg));
        request.body.route = (struct rtmsg){.rtm_family = AF_INET,
                                            .rtm_table = RT_TABLE_MAIN,
                                            .rtm_protocol = RTPROT_STATIC,
                                            .rtm_scope = RT_SCOPE_LINK,
                                            .rtm_type = RTN_UNICAST,
                                            .rtm_dst_len = 32};
        add_attribute(&request.header, RTA_DST, &value, 4);
        add_attribute(&request.header, RTA_OIF, &lo, 4);
    }
    return judge(netlink_ask(&request.header), argv[0]);
}

/* unix-connect PATH ("@name": abstract) */
static int unix_connect(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    size_t n = strlen(argv[0]);

    (void)argc;
    if (n >= sizeof(address.sun_path))
        return untried("path too long");
    memcpy(address.sun_path, argv[0], n);
    if (argv[0][0] == '@')
        address.sun_path[0] = 0;
    return judge(connect(fd, (struct sockaddr *)&address,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)),
                 "connect");
}

static int shm_read(int argc, char **argv)
{
    int id = shmget((key_t)strtol(argv[0], NULL, 0), 1, 0);
    const char *memory;

    (void)argc;
    if (id < 0)
        return refused("shmget");
    memory = shmat(id, NULL, SHM_RDONLY);
    if (memory == (void *)-1)
        return refused("shmat");
    return won("shared memory says %.20s", memory);
}

/* shm-make KEY SECONDS: the neighbour's side. */
static int shm_make(int argc, char **argv)
{
    int id = shmget((key_t)strtol(argv[0], NULL, 0), 4096, IPC_CREAT | 0666);
    char *memory = id >= 0 ? shmat(id, NULL, 0) : NULL;

    (void)argc;
    if (!memory || memory == (void *)-1)
        return untried("shmget");
    strcpy(memory, "secret");
    printf("made\n");
    fflush(stdout);
    sleep_ms(atol(argv[1]) * 1000);
    shmctl(id, IPC_RMID, NULL);
    return WON;
}

static int queue_open(int argc, char **argv)
{
    (void)argc;
    return judge(mq_open(argv[0], O_RDWR), "mq_open");
}

static int queue_make(int argc, char **argv)
{
    mqd_t queue = mq_open(argv[0], O_RDWR | O_CREAT, 0666, NULL);

    (void)argc;
    if (queue == (mqd_t)-1)
        return untried("mq_open");
    printf("made\n");
    fflush(stdout);
    sleep_ms(atol(argv[1]) * 1000);
    mq_unlink(argv[0]);
    return WON;
}

const struct attack socket_attacks[] = {
    {"socket", make_socket, 3},
    {"tcp-option", tcp_option, 1},
    {"socket-filter", socket_filter, 1},
    {"connect", tcp_connect, 3},
    {"route", route, 1},
    {"datagram", datagram, 3},
    {"interfaces", interfaces, 0},
    {"netlink", netlink_add, 1},
    {"unix-connect", unix_connect, 1},
    {"shm-read", shm_read, 1},
    {"shm-make", shm_make, 2},
    {"queue-open", queue_open, 1},
    {"queue-make", queue_make, 2},
    {NULL, NULL, 0},
};
