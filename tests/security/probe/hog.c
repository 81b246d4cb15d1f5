/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exhaustion: each attack takes a stated amount of one resource and wins if it gets all of it.
 * Amounts are small enough for a control without any limit on the test machine.
 */
#include "probe.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static int got_all(long got, long wanted, const char *what)
{
    int code = errno;

    if (got >= wanted)
        return won("%ld %s", got, what);
    printf("refused: after %ld of %ld %s: errno %d: %s\n", got, wanted, what, code, strerror(code));
    return REFUSED;
}

/* Holds what it has for SECONDS if that argument is there, so that others can be looked at
 * meanwhile. */
static void hold(int argc, char **argv, int position)
{
    if (argc <= position)
        return;
    printf("holding\n");
    fflush(stdout);
    sleep_ms(atol(argv[position]) * 1000);
}

static int processes(int argc, char **argv)
{
    long wanted = atol(argv[0]), got = 0;
    pid_t *pids = calloc((size_t)wanted, sizeof(*pids));
    int code;

    while (got < wanted) {
        pids[got] = sleeping_child();
        if (pids[got] < 0)
            break;
        got++;
    }
    code = errno;
    hold(argc, argv, 1);
    for (long i = 0; i < got; i++)
        end_child(pids[i]);
    errno = code;
    return got_all(got, wanted, "processes");
}

/* The real thing, for SECONDS: only in a sandbox that the test then removes. */
static int storm(int argc, char **argv)
{
    time_t end = time(NULL) + atol(argv[0]);

    (void)argc;
    if (on_the_host())
        return untried("never on the host");
    signal(SIGCHLD, SIG_IGN);
    while (time(NULL) < end)
        fork();
    _exit(0);
}

static void *idle_thread(void *data)
{
    (void)data;
    sleep_ms(20000);
    return NULL;
}

static int threads(int argc, char **argv)
{
    long wanted = atol(argv[0]), got = 0;
    pthread_attr_t attr;
    pthread_t thread;

    (void)argc;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 32768);
    while (got < wanted && (errno = pthread_create(&thread, &attr, idle_thread, NULL)) == 0)
        got++;
    return got_all(got, wanted, "threads");
}

static int memory(int argc, char **argv)
{
    long wanted = atol(argv[0]), got = 0;
    char *block;

    (void)argc;
    while (got < wanted) {
        block = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            break;
        memset(block, 1, 1 << 20);
        got++;
    }
    return got_all(got, wanted, "MiB of memory");
}

static long write_blocks(int fd, long wanted)
{
    static char block[1 << 20];
    long got = 0;

    memset(block, 'x', sizeof(block));
    while (got < wanted && write(fd, block, sizeof(block)) == (ssize_t)sizeof(block))
        got++;
    return got;
}

/* write-file PATH MIB */
static int write_file(int argc, char **argv)
{
    int fd = open(argv[0], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), code;
    long got;

    (void)argc;
    if (fd < 0)
        return untried(argv[0]);
    got = write_blocks(fd, atol(argv[1]));
    code = errno;
    unlink(argv[0]);
    close(fd);
    errno = code;
    return got_all(got, atol(argv[1]), "MiB of file");
}

static int memory_file(int argc, char **argv)
{
    int fd = memfd_create("hog", 0);

    (void)argc;
    if (fd < 0)
        return untried("memfd_create");
    return got_all(write_blocks(fd, atol(argv[0])), atol(argv[0]), "MiB of memfd");
}

static int shared_memory(int argc, char **argv)
{
    size_t size = (size_t)atol(argv[0]) << 20;
    int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600);
    char *block;

    (void)argc;
    if (id < 0)
        return refused("shmget");
    block = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    if (block == (void *)-1)
        return refused("shmat");
    memset(block, 1, size);
    return won("%s MiB of shared memory", argv[0]);
}

/* inodes DIR N */
static int inodes(int argc, char **argv)
{
    long wanted = atol(argv[1]), got = 0;
    char path[4096];
    int fd, code;

    (void)argc;
    for (; got < wanted; got++) {
        snprintf(path, sizeof(path), "%s/hog-%ld", argv[0], got);
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            break;
        close(fd);
    }
    code = errno;
    for (long i = 0; i < got; i++) {
        snprintf(path, sizeof(path), "%s/hog-%ld", argv[0], i);
        unlink(path);
    }
    errno = code;
    return got_all(got, wanted, "files");
}

static int descriptors(int argc, char **argv)
{
    struct rlimit limit = {(rlim_t)atol(argv[0]) + 16, (rlim_t)atol(argv[0]) + 16};
    long wanted = atol(argv[0]), got = 0;

    (void)argc;
    setrlimit(RLIMIT_NOFILE, &limit);
    while (got < wanted && open("/dev/null", O_RDONLY) >= 0)
        got++;
    return got_all(got, wanted, "descriptors");
}

static int inotifies(int argc, char **argv)
{
    long wanted = atol(argv[0]), got = 0;
    int code;

    while (got < wanted && inotify_init1(IN_CLOEXEC) >= 0)
        got++;
    code = errno;
    hold(argc, argv, 1);
    errno = code;
    return got_all(got, wanted, "inotify instances");
}

/* pipes N [SECONDS]: N pipes of 1 MiB each, out of the budget of this user. */
static int pipes(int argc, char **argv)
{
    long wanted = atol(argv[0]), got = 0;
    int pair[2], code;

    while (got < wanted && pipe2(pair, O_CLOEXEC) == 0 &&
           fcntl(pair[0], F_SETPIPE_SZ, 1 << 20) >= 1 << 20)
        got++;
    code = errno;
    hold(argc, argv, 1);
    errno = code;
    return got_all(got, wanted, "large pipes");
}

static int terminals(int argc, char **argv)
{
    long wanted = atol(argv[0]), got = 0;
    int code;

    while (got < wanted && open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC) >= 0)
        got++;
    code = errno;
    hold(argc, argv, 1);
    errno = code;
    return got_all(got, wanted, "terminals");
}

/* stubborn SECONDS: ignores every signal that can be ignored. */
static int stubborn(int argc, char **argv)
{
    (void)argc;
    for (int i = 1; i < 32; i++)
        signal(i, SIG_IGN);
    alarm(0);
    printf("stubborn %d\n", (int)getpid());
    fflush(stdout);
    sleep_ms(atol(argv[0]) * 1000);
    return WON;
}

/* daemon FILE SECONDS: leaves its session and its parent, closes its output, and goes on writing to
 * FILE. */
static int daemonize(int argc, char **argv)
{
    time_t end = time(NULL) + atol(argv[1]);
    pid_t pid = fork();

    (void)argc;
    if (pid > 0) {
        sleep_ms(20000); /* the main process stays, so that a timeout has something to end */
        return WON;
    }
    setsid();
    if (fork() > 0)
        _exit(0);
    for (int i = 1; i < 32; i++)
        signal(i, SIG_IGN);
    alarm(0);
    prctl(PR_SET_NAME, "innocent");
    close(0);
    close(1);
    close(2);
    while (time(NULL) < end) {
        int fd = open(argv[0], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);

        if (fd >= 0 && write(fd, ".", 1) == 1)
            close(fd);
        sleep_ms(50);
    }
    _exit(0);
}

/* orphans N: each is left by its parent and ends; then counts the zombies that stay
 * for a second. */
static int orphans(int argc, char **argv)
{
    long n = atol(argv[0]), left = 0;
    char path[64], line[512];

    (void)argc;
    for (long i = 0; i < n; i++) {
        pid_t pid = fork();

        if (pid < 0) /* the limit is reached: give init a moment, then go on */
            sleep_ms(10);
        if (pid == 0) {
            if (fork() == 0)
                _exit(0);
            _exit(0);
        }
        if (pid > 0)
            waitpid(pid, NULL, 0);
    }
    sleep_ms(1000);
    for (int pid = 1; pid < 32768; pid++) {
        FILE *file;

        snprintf(path, sizeof(path), "/proc/%d/stat", pid);
        file = fopen(path, "re");
        if (!file)
            continue;
        if (fgets(line, sizeof(line), file) && strstr(line, ") Z "))
            left++;
        fclose(file);
    }
    return left ? won("%ld zombies are left", left) : refused_by("all %ld were reaped", n);
}

/* deep DIR N: a tree far deeper than any path can say. */
static int deep(int argc, char **argv)
{
    static const char name[] = "dddddddddddddddddddddddddddddddddddddddd";
    long n = atol(argv[1]);

    (void)argc;
    if (chdir(argv[0]) < 0)
        return untried(argv[0]);
    for (long i = 0; i < n; i++) {
        if (mkdir(name, 0700) < 0 || chdir(name) < 0)
            return refused("mkdir");
    }
    return won("%ld levels", n);
}

/* spin SECONDS N: N processes compute; prints the CPU time they got, in milliseconds. */
static int spin(int argc, char **argv)
{
    time_t end = time(NULL) + atol(argv[0]);
    struct rusage usage;

    (void)argc;
    for (long i = 0; i < atol(argv[1]); i++) {
        if (fork() == 0) {
            while (time(NULL) < end)
                ;
            _exit(0);
        }
    }
    while (wait(NULL) > 0)
        ;
    getrusage(RUSAGE_CHILDREN, &usage);
    printf("%ld\n", usage.ru_utime.tv_sec * 1000 + usage.ru_utime.tv_usec / 1000 +
                        usage.ru_stime.tv_sec * 1000 + usage.ru_stime.tv_usec / 1000);
    return WON;
}

const struct attack hog_attacks[] = {
    {"processes", processes, 1},
    {"storm", storm, 1},
    {"threads", threads, 1},
    {"memory", memory, 1},
    {"write-file", write_file, 2},
    {"memfd", memory_file, 1},
    {"shm", shared_memory, 1},
    {"inodes", inodes, 2},
    {"descriptors", descriptors, 1},
    {"inotifies", inotifies, 1},
    {"pipes", pipes, 1},
    {"terminals", terminals, 1},
    {"stubborn", stubborn, 1},
    {"daemon", daemonize, 2},
    {"orphans", orphans, 1},
    {"deep", deep, 2},
    {"spin", spin, 2},
    {NULL, NULL, 0},
};
