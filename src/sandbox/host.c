/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `host` image: a skeleton with everything of a root but /usr, which is the host's own. Its
 * /etc is synthetic: accounts are ours, and from the host come only the files named below, and of
 * those only what every user of the host may read. Nothing of /home, /root, or of /var but the
 * package database that apt needs to know what /usr holds.
 *
 * A skeleton is made once for each generation of the host (its packages, alternatives,
 * certificates), under a name that tells the generation, complete or not at all (rename).
 */
#include "base/err.h"
#include "base/util.h"
#include "sandbox/image.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

/* Of the tables below: another number makes new skeletons. */
#define TABLES 5
/* Trees deeper than this are cut: no config directory is. */
#define MAX_DEPTH 12
/* Files larger than this are not configuration. The package database is the largest: some MiB. */
#define MAX_FILE (64 << 20)

static const struct {
    const char *path;
    mode_t mode;
} directories[] = {
    {"usr", 0755},
    {"etc", 0755},
    {"etc/apt", 0755},
    {"etc/apt/sources.list.d", 0755},
    {"etc/ssl", 0755},
    {"dev", 0755},
    {"proc", 0555},
    {"sys", 0555},
    {"run", 0755},
    {"run/lock", 01777},
    {"tmp", 01777},
    {"root", 0700},
    {"home", 0755},
    {"home/user", 0755},
    {"mnt", 0755},
    {"media", 0755},
    {"opt", 0755},
    {"srv", 0755},
    {"workspace", 0777},
    {"var", 0755},
    {"var/tmp", 01777},
    {"var/log", 0755},
    {"var/log/apt", 0755},
    {"var/lib", 0755},
    {"var/lib/misc", 0755},
    {"var/cache", 0755},
    {"var/cache/apt", 0755},
    {"var/cache/apt/archives", 0755},
    {"var/cache/apt/archives/partial", 0755},
    {"var/lib/apt", 0755},
    {"var/lib/apt/lists", 0755},
    {"var/lib/apt/lists/partial", 0755},
    {"var/lib/dpkg", 0755},
    {"var/lib/dpkg/updates", 0755},
    {"var/lib/dpkg/triggers", 0755},
    {"var/lib/dpkg/parts", 0755},
    {"var/mail", 0755},
    {"var/spool", 0755},
    {"var/local", 0755},
    {"var/opt", 0755},
    {"var/lib/dpkg/info", 0755},
};

/* For interactive shells: who and where in the prompt, whatever the host's own files say, and the
 * colours that people are used to. */
#define BASHRC                                                         \
    "[ -f /etc/bash.bashrc ] && . /etc/bash.bashrc\n"                  \
    "[ -z \"$PS1\" ] && return\n"                                      \
    "PS1='\\u@\\h:\\w\\$ '\n"                                          \
    "HISTCONTROL=ignoreboth\n"                                         \
    "if [ \"${TERM:-dumb}\" != dumb ] && [ -z \"$NO_COLOR\" ]; then\n" \
    "    alias ls='ls --color=auto' grep='grep --color=auto'\n"        \
    "fi\n"                                                             \
    "alias ll='ls -l' la='ls -A'\n"

static const struct {
    const char *path, *text;
} files[] = {
    {"etc/passwd",
     "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
     "bin:x:2:2:bin:/bin:/usr/sbin/nologin\nsys:x:3:3:sys:/dev:/usr/sbin/nologin\n"
     "games:x:5:60:games:/usr/games:/usr/sbin/nologin\nman:x:6:12:man:/var/cache/man:/usr/sbin/"
     "nologin\n"
     "mail:x:8:8:mail:/var/mail:/usr/sbin/nologin\nwww-data:x:33:33:www-data:/var/www:/usr/sbin/"
     "nologin\n"
     "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"
     "user:x:1000:1000:user:/home/user:/bin/bash\n"
     "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
    {"etc/group",
     "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nmail:x:8:\n"
     "man:x:12:\nkmem:x:15:\nsudo:x:27:\naudio:x:29:\nwww-data:x:33:\nutmp:x:43:\nvideo:x:44:\n"
     "staff:x:50:\ngames:x:60:\nusers:x:100:\nuser:x:1000:\nnogroup:x:65534:\n"},
    {"etc/shadow",
     "root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n"},
    {"etc/gshadow", "root:*::\nuser:*::\nnogroup:*::\n"},
    {"etc/hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"},
    {"etc/hostname", "cay\n"},
    {"etc/resolv.conf", "# No resolver: this sandbox has no network.\n"},
    {"etc/nsswitch.conf",
     "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n"
     "protocols: db files\nservices: db files\nethers: db files\nrpc: db files\n"},
    {"etc/host.conf", "multi on\n"},
    {"etc/fstab", ""},
    {"etc/apt/sources.list", "# No package source: this sandbox has no network.\n"},
    {"etc/mtab", NULL}, /* a link, see below */
    {"etc/shells", "/bin/sh\n/bin/bash\n/usr/bin/bash\n/bin/dash\n"},
    {"etc/machine-id", ""},
    /* What pip installs goes into the sandbox, which is thrown away, and not into the host. */
    {"etc/pip.conf", "[global]\nbreak-system-packages = true\nroot-user-action = ignore\n"},
    {"etc/environment", "PATH=\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"\n"},
    {"root/.bashrc", BASHRC},
    {"root/.profile", "[ -n \"$BASH\" ] && [ -f ~/.bashrc ] && . ~/.bashrc\n"},
    {"home/user/.bashrc", BASHRC},
    {"home/user/.profile", "[ -n \"$BASH\" ] && [ -f ~/.bashrc ] && . ~/.bashrc\n"},
};

static const struct {
    const char *path, *target;
} links[] = {
    {"etc/mtab", "/proc/self/mounts"},
    {"var/run", "/run"},
    {"var/lock", "/run/lock"},
};

/* From the host, where it has them; only what everybody may read there. */
static const char *const host_files[] = {
    "etc/alternatives",
    "etc/ssl/certs",
    "etc/ssl/openssl.cnf",
    "etc/ca-certificates.conf",
    "etc/ca-certificates",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/localtime",
    "etc/timezone",
    "etc/mime.types",
    "etc/services",
    "etc/protocols",
    "etc/rpc",
    "etc/profile",
    "etc/profile.d",
    "etc/bash.bashrc",
    "etc/bash_completion.d",
    "etc/inputrc",
    "etc/terminfo",
    "etc/debian_version",
    "etc/lsb-release",
    "etc/os-release",
    "etc/issue",
    "etc/login.defs",
    "etc/skel",
    "etc/security/limits.conf",
    "etc/magic",
    "etc/magic.mime",
    "etc/nanorc",
    "etc/vim",
    "etc/gdb",
    "etc/fonts",
    "etc/python3",
    "etc/python3.9",
    "etc/python3.10",
    "etc/python3.11",
    "etc/python3.12",
    "etc/python3.13",
    "etc/perl",
    "etc/java-11-openjdk",
    "etc/java-17-openjdk",
    "etc/java-21-openjdk",
    "etc/java-25-openjdk",
    "etc/maven",
    "etc/emacs",
    "etc/ImageMagick-6",
    "etc/ImageMagick-7",
    "etc/apt/apt.conf.d",
    "etc/apt/trusted.gpg.d",
    "etc/apt/keyrings",
    "etc/apt/preferences.d",
    "etc/dpkg",
    "etc/debconf.conf",
    "etc/adduser.conf",
    "etc/deluser.conf",
    "etc/wgetrc",
    "etc/screenrc",
    "etc/tmux.conf",
    "etc/xattr.conf",
    "etc/gai.conf",
    "etc/pam.conf",
    "etc/pam.d",
    "etc/locale.alias",
    "etc/locale.gen",
    "etc/default/locale",
    "etc/mailcap",
    "etc/papersize",
    "etc/php",
    "etc/ruby",
    "etc/R",
    "etc/lynx",
    "etc/mke2fs.conf",
    "etc/rmt",
    "var/lib/dpkg/status",
    "var/lib/dpkg/diversions",
    "var/lib/dpkg/arch",
    "var/lib/dpkg/alternatives",
    "var/lib/dpkg/info/format",
    "var/lib/apt/extended_states",
};

/* What makes a new generation when it changes. */
static const char *const generation[] = {
    "/etc/alternatives", "/etc/ld.so.cache", "/var/lib/dpkg/status",
    "/etc/ssl/certs",    "/etc/localtime",   "/usr",
    "/usr/local",        "/usr/local/bin",   "/usr/local/etc",
    "/usr/local/lib",    "/usr/local/sbin",  "/usr/local/share",
};

/* A file that cannot be read is left out; a disk that is full must not make an image with holes. */
static bool cannot_write(void)
{
    return errno == ENOSPC || errno == EDQUOT || errno == EROFS || errno == ENOMEM;
}

static int copy_file(int from, int to, const char *name, const struct stat *st)
{
    autofd int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    autofd int out =
        openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, st->st_mode & 0755);
    if (in < 0 || out < 0)
        return -1;
    for (ssize_t n; (n = sendfile(out, in, NULL, 1 << 20)) != 0;)
        if (n < 0)
            return -1;
    return fchmod(out, st->st_mode & 0755);
}

static int copy_entry(int from, int to, const char *name, int depth);

static int copy_children(int from, int to, int depth)
{
    int scan = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = scan < 0 ? NULL : fdopendir(scan);
    if (!stream)
        return -1;
    int result = 0;
    for (struct dirent *e; result == 0 && (e = readdir(stream));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
            copy_entry(from, to, e->d_name, depth) < 0 && cannot_write())
            result = -1;
    int eno = errno;
    closedir(stream);
    errno = eno;
    return result;
}

/* Copies what everybody may read; the rest is left out without a word, as that is the rule here. */
static int copy_entry(int from, int to, const char *name, int depth)
{
    char target[CAY_MAX_PATH];
    struct stat st;
    if (depth > MAX_DEPTH || fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlinkat(from, name, target, sizeof(target) - 1);
        if (n <= 0)
            return 0;
        target[n] = 0;
        return symlinkat(target, to, name);
    }
    if (S_ISREG(st.st_mode))
        return (st.st_mode & 0004) && st.st_size <= MAX_FILE ? copy_file(from, to, name, &st) : 0;
    if (!S_ISDIR(st.st_mode) || (st.st_mode & 0005) != 0005)
        return 0;
    autofd int below = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0)
        return 0;
    if (mkdirat(to, name, 0755) < 0 && errno != EEXIST)
        return -1;
    autofd int made = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return made < 0 ? -1 : copy_children(below, made, depth + 1);
}

/* `path` relative to both roots; its parent is made here if it is not there. -1: no room. */
static int copy_from_host(int root, const char *path)
{
    char parent[256];
    const char *name = strrchr(path, '/') + 1;
    snprintf(parent, sizeof(parent), "%.*s", (int)(name - path), path);
    autofd int host = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    autofd int from = host < 0 ? -1 : openat(host, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0)
        return 0;
    if (mkdirat(root, parent, 0755) < 0 && errno != EEXIST)
        return cannot_write() ? -1 : 0;
    autofd int to = openat(root, parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return to >= 0 && copy_entry(from, to, name, 0) < 0 && cannot_write() ? -1 : 0;
}

/* dpkg wants to know which files belong to which package. */
static int copy_package_lists(int root)
{
    autofd int from = open("/var/lib/dpkg/info", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    autofd int to = openat(root, "var/lib/dpkg/info", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int scan = from < 0 ? -1 : openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = scan < 0 ? NULL : fdopendir(scan);
    if (!stream)
        return 0;
    int result = 0;
    for (struct dirent *e; result == 0 && (e = readdir(stream));) {
        size_t n = strlen(e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".list") == 0 && to >= 0 &&
            copy_entry(from, to, e->d_name, 0) < 0 && cannot_write())
            result = -1;
    }
    int eno = errno;
    closedir(stream);
    errno = eno;
    return result;
}

/* /bin, /lib and their kin are links into /usr on every host since 2021; they are repeated as they
 * are. */
static int copy_top_links(int root)
{
    static const char *const names[] = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"};
    char target[64], path[16];
    for (size_t i = 0; i < CAY_COUNT(names); i++) {
        snprintf(path, sizeof(path), "/%s", names[i]);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n <= 0)
            continue;
        target[n] = 0;
        if (symlinkat(target, root, names[i]) < 0)
            return -1;
    }
    return 0;
}

static int write_text(int root, const char *path, const char *text)
{
    mode_t mode = strstr(path, "shadow") ? 0640 : 0644;
    autofd int fd = openat(root, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    return fd < 0 ? -1 : cay_write_all(fd, text, strlen(text));
}

static int fill_skeleton(int root)
{
    for (size_t i = 0; i < CAY_COUNT(directories); i++)
        if (mkdirat(root, directories[i].path, 0755) < 0 ||
            fchmodat(root, directories[i].path, directories[i].mode, 0) < 0)
            return -1;
    for (size_t i = 0; i < CAY_COUNT(files); i++)
        if (files[i].text && write_text(root, files[i].path, files[i].text) < 0)
            return -1;
    for (size_t i = 0; i < CAY_COUNT(links); i++)
        if (symlinkat(links[i].target, root, links[i].path) < 0)
            return -1;
    if (copy_top_links(root) < 0)
        return -1;
    for (size_t i = 0; i < CAY_COUNT(host_files); i++)
        if (copy_from_host(root, host_files[i]) < 0)
            return -1;
    if (copy_package_lists(root) < 0)
        return -1;
    /* Rootless there is only one id to own things; the directory is writable for all then. */
    static const char *const users[] = {"home/user", "home/user/.bashrc", "home/user/.profile",
                                        "workspace"};
    for (size_t i = 0; i < CAY_COUNT(users); i++)
        if (fchownat(root, users[i], 1000, 1000, 0) < 0 && fchmodat(root, users[i], 0777, 0) < 0)
            return -1;
    return 0;
}

/* ---- /usr/local ------------------------------------------------------------------------------ */

/*
 * Below /usr/local lies what the administrator put there. As root, owners in /usr are shifted so
 * that the sandbox's root can change what is there, and could then read what only the host's root
 * may. So /usr/local is a layer of its own that keeps its owners: they are nobody the sandbox has a
 * right over, and the kernel shows it what it shows to everybody, whenever a file becomes private.
 * Over it lie its directories, as they were when the skeleton was made and without anything in
 * them: they are the sandbox's, which can install and remove in them as ever. (The rest of /usr is
 * the distribution's and holds no secrets.)
 */
#define LOCAL "/usr/local"
/* Each takes a block of the state directory. Those further from the top are read-only. */
#define MAX_LOCAL_DIRS 4096

struct dirs {
    char *paths[MAX_LOCAL_DIRS]; /* relative; [0] is "." */
    size_t n;
};

static void dirs_free(struct dirs *dirs)
{
    for (size_t i = 0; dirs && i < dirs->n; i++)
        free(dirs->paths[i]);
    free(dirs);
}

static int add_dir(struct dirs *dirs, const char *parent, const char *name)
{
    char path[CAY_MAX_PATH];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", parent, name) >= sizeof(path))
        return 0;
    dirs->paths[dirs->n] = strdup(path);
    if (!dirs->paths[dirs->n])
        return -1;
    dirs->n++;
    return 0;
}

/* Makes one as it is on the host, and notes what is below it. One that not everybody may read is
 * left to the kernel. */
static int repeat_dir(struct dirs *dirs, size_t at, int local, int cover)
{
    const char *path = dirs->paths[at];
    struct stat st;
    autofd int fd = openat(local, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || (st.st_mode & 0005) != 0005)
        return 0;
    if ((mkdirat(cover, path, 0755) < 0 && errno != EEXIST) ||
        fchownat(cover, path, st.st_uid, st.st_gid, 0) < 0 ||
        fchmodat(cover, path, st.st_mode & 07777, 0) < 0)
        return -1;
    DIR *stream = fdopendir(fd);
    if (!stream)
        return -1;
    steal_fd(&fd);
    int result = 0;
    for (struct dirent *e; result == 0 && dirs->n < MAX_LOCAL_DIRS && (e = readdir(stream));) {
        bool directory = e->d_type == DT_DIR || e->d_type == DT_UNKNOWN;
        if (directory && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            result = add_dir(dirs, path, e->d_name);
    }
    closedir(stream);
    return result;
}

/* Level by level, so that it is the deepest ones that are too many. */
static int make_local(int top)
{
    autofd int local = openat(AT_FDCWD, LOCAL, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (local < 0 || geteuid() != 0)
        return 0;
    if (mkdirat(top, "local", 0755) < 0)
        return -1;
    autofd int cover = openat(top, "local", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct dirs *dirs = calloc(1, sizeof(*dirs));
    int result = cover < 0 || !dirs || !(dirs->paths[0] = strdup(".")) ? -1 : 0;
    if (result == 0)
        dirs->n = 1;
    for (size_t i = 0; result == 0 && i < dirs->n; i++)
        result = repeat_dir(dirs, i, local, cover);
    int eno = errno;
    dirs_free(dirs);
    errno = eno;
    return result;
}

/* ---- what /usr lacks ------------------------------------------------------------------------- */

/* Links that programs rely on and the distribution leaves to taste: made where `target` is. */
static const struct {
    const char *directory, *name, *target;
} usual[] = {
    {"bin", "python", "python3"},
};

static int add_usual(int cover)
{
    char path[64];
    struct stat st;
    for (size_t i = 0; i < CAY_COUNT(usual); i++) {
        snprintf(path, sizeof(path), "/usr/%s/%s", usual[i].directory, usual[i].target);
        bool target = stat(path, &st) == 0;
        snprintf(path, sizeof(path), "/usr/%s/%s", usual[i].directory, usual[i].name);
        if (!target || lstat(path, &st) == 0)
            continue;
        if (mkdirat(cover, usual[i].directory, 0755) < 0 && errno != EEXIST)
            return -1;
        if (symlinkat(usual[i].target, cover, path + strlen("/usr/")) < 0)
            return -1;
    }
    return 0;
}

static int make_cover(int top)
{
    if (mkdirat(top, "cover", 0755) < 0)
        return -1;
    autofd int cover = openat(top, "cover", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (cover < 0 || add_usual(cover) < 0)
        return -1;
    /* Nothing to change: no layer, and a faster start. */
    return unlinkat(top, "cover", AT_REMOVEDIR) == 0 || errno == ENOTEMPTY ? 0 : -1;
}

uint32_t host_generation(void)
{
    struct {
        uint64_t tables;
        struct timespec times[CAY_COUNT(generation)];
    } key = {.tables = TABLES};
    for (size_t i = 0; i < CAY_COUNT(generation); i++) {
        struct stat st;
        if (stat(generation[i], &st) == 0)
            key.times[i] = st.st_mtim;
    }
    return cay_crc32(&key, sizeof(key));
}

static int make_skeleton(const char *images, const char *name, struct cay_error *err)
{
    char temporary[64];
    mode_t mask = umask(022);
    snprintf(temporary, sizeof(temporary), ".%s.%d", name, (int)getpid());
    int result = -1;
    autofd int dir =
        cay_mkdir_all(images, 0700) < 0 ? -1 : open(images, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    autofd int top = dir < 0 || mkdirat(dir, temporary, 0755) < 0
                         ? -1
                         : openat(dir, temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    autofd int root = top < 0 || mkdirat(top, "root", 0755) < 0
                          ? -1
                          : openat(top, "root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (root >= 0)
        result = fill_skeleton(root) < 0 || make_cover(top) < 0 || make_local(top) < 0 ? -1 : 0;
    /* Two at once: the first wins, both are the same. */
    if (result == 0 && renameat(dir, temporary, dir, name) < 0 && errno != EEXIST &&
        errno != ENOTEMPTY)
        result = -1;
    int eno = errno;
    if (dir >= 0)
        cay_remove_tree_at(dir, temporary);
    umask(mask);
    return result < 0 ? cay_fail_errno(err, eno, "cannot prepare the host image in %s", images) : 0;
}

static int open_skeleton(const char *images, struct cay_error *err)
{
    char name[32], path[CAY_MAX_PATH];
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    snprintf(name, sizeof(name), "host-%08x", host_generation());
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", images, name) >= sizeof(path))
        return cay_fail(err, CAY_E_INVALID, "the state directory's path is too long");
    autofd int dir = open(path, flags);
    if (dir < 0 && errno == ENOENT) {
        if (make_skeleton(images, name, err) < 0)
            return -1;
        dir = open(path, flags);
    }
    return dir < 0 ? cay_fail_errno(err, errno, "cannot open the host image in %s", images)
                   : steal_fd(&dir);
}

/* Where /usr/local is a link or a file system of its own, the image has nothing of it. */
static bool has_local(void)
{
    struct stat usr, local;
    return geteuid() == 0 && lstat("/usr", &usr) == 0 &&
           (lstat(LOCAL, &local) == 0 ? S_ISDIR(local.st_mode) && usr.st_dev == local.st_dev
                                      : errno != ENOENT);
}

int host_image(const char *state_path, struct image *out, struct cay_error *err)
{
    const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    char images[CAY_MAX_PATH];
    snprintf(images, sizeof(images), "%s/images", state_path);
    autofd int dir = open_skeleton(images, err);
    if (dir < 0)
        return -1;
    const struct {
        const char *lower, *cover, *target;
        bool unshifted;
    } parts[] = {
        {"root", NULL, "/", false},
        {"/usr", "cover", "/usr", false},
        {LOCAL, "local", LOCAL, true},
    };
    for (size_t i = 0; i < (has_local() ? 3 : 2); i++) {
        out->layers[i].target = parts[i].target;
        out->layers[i].unshifted = parts[i].unshifted;
        out->layers[i].lower = openat(dir, parts[i].lower, flags);
        out->layers[i].cover = -1;
        out->n_layers = i + 1;
        if (out->layers[i].lower < 0)
            return cay_fail_errno(err, errno, "cannot open %s of the host image in %s",
                                  parts[i].lower, images);
        if (parts[i].cover)
            out->layers[i].cover = openat(dir, parts[i].cover, flags);
        if (parts[i].cover && out->layers[i].cover < 0 && errno != ENOENT)
            return cay_fail_errno(err, errno, "cannot open %s of the host image in %s",
                                  parts[i].cover, images);
    }
    return 0;
}
