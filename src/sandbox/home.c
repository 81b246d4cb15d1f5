/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/home.h"

#include "base/err.h"
#include "base/util.h"
#include "jail/cgroup_host.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

const char *cay_version(void)
{
    return CAY_VERSION;
}

bool home_privileged(void)
{
    return geteuid() == 0;
}

/* Where a directory is when nobody says otherwise: root's place, or below an XDG variable or the
 * home. */
struct place {
    const char *variable, *root, *xdg, *xdg_below, *home_below;
};

static const struct place state_place = {"CAY_STATE_DIR", "/var/lib/cay", "XDG_DATA_HOME", "cay",
                                         ".local/share/cay"};
static const struct place run_place = {"CAY_RUN_DIR", "/run/cay", "XDG_RUNTIME_DIR", "cay", NULL};
static const struct place config_place = {"CAY_CONFIG", "/etc/cay/cay.conf", "XDG_CONFIG_HOME",
                                          "cay/cay.conf", ".config/cay/cay.conf"};

/* Links are looked for in the last component, which a slash at the end would hide. */
static void trim_slashes(char *path)
{
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
}

static int find_place(const struct place *place, const char *given, bool root, char *out,
                      size_t size, struct cay_error *err)
{
    const char *direct = given ? given : getenv(place->variable);
    const char *xdg = getenv(place->xdg), *home = getenv("HOME");
    int n;
    if (direct && *direct)
        n = snprintf(out, size, "%s", direct);
    else if (root)
        n = snprintf(out, size, "%s", place->root);
    else if (xdg && *xdg == '/')
        n = snprintf(out, size, "%s/%s", xdg, place->xdg_below);
    else if (!place->home_below) /* no session: a directory that only this user can have made */
        n = snprintf(out, size, "/tmp/cay-%u", (unsigned)geteuid());
    else if (home && *home == '/')
        n = snprintf(out, size, "%s/%s", home, place->home_below);
    else if (home && *home)
        return cay_fail(err, CAY_E_INVALID,
                        "$HOME is '%.100s', not an absolute path, and $%s is not set", home,
                        place->variable);
    else
        return cay_fail(err, CAY_E_INVALID, "neither $%s nor $HOME is set", place->variable);
    if (n < 0 || (size_t)n >= size || out[0] != '/')
        return cay_fail(err, CAY_E_INVALID, "$%s: '%s' is not an absolute path, or too long",
                        place->variable, out);
    trim_slashes(out);
    return 0;
}

static int open_sandboxes(const char *state_path, struct cay_error *err)
{
    struct stat st;
    autofd int state = home_own(HOME_STATE, state_path, err);
    if (state < 0)
        return -1;
    autofd int fd = home_open(state, "sandboxes");
    if (fd < 0 && errno == ENOENT && (mkdirat(state, "sandboxes", 0700) == 0 || errno == EEXIST))
        fd = home_open(state, "sandboxes");
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot make %s/sandboxes", state_path);
    if (st.st_uid != geteuid() || (st.st_mode & 022))
        return cay_fail(err, CAY_E_DENIED,
                        "%s/sandboxes belongs to somebody else or is writable by others",
                        state_path);
    return steal_fd(&fd);
}

int cay_open(const struct cay_options *options, struct cay **out, struct cay_error *err)
{
    const struct cay_options none = {0};
    if (!options)
        options = &none;
    struct cay *cay = calloc(1, sizeof(*cay));
    if (!cay)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    cay->run = cay->sandboxes = -1;
    cay->privileged = home_privileged();
    const char *named = getenv(config_place.variable);
    cay->config_named = options->config || (named && *named);
    if (find_place(&state_place, options->state_dir, cay->privileged, cay->state_path,
                   sizeof(cay->state_path), err) < 0 ||
        find_place(&run_place, options->run_dir, cay->privileged, cay->run_path,
                   sizeof(cay->run_path), err) < 0 ||
        find_place(&config_place, options->config, cay->privileged, cay->config_path,
                   sizeof(cay->config_path), err) < 0)
        goto failed;
    if (!cgroup_base_name()) {
        cay_fail(err, CAY_E_INVALID, "$CAY_CGROUP: '%s' cannot name a cgroup",
                 getenv("CAY_CGROUP"));
        goto failed;
    }
    cay->run = home_own(HOME_RUN, cay->run_path, err);
    cay->sandboxes = cay->run < 0 ? -1 : open_sandboxes(cay->state_path, err);
    if (cay->sandboxes < 0)
        goto failed;
    *out = cay;
    return 0;
failed:
    cay_close(cay);
    return -1;
}

void cay_close(struct cay *cay)
{
    if (!cay)
        return;
    close_fd(&cay->run);
    close_fd(&cay->sandboxes);
    free(cay);
}

int home_open(int parent, const char *id)
{
    return openat(parent, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool home_is(int parent, const char *id, int dir)
{
    struct stat named, held;
    return fstatat(parent, id, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(dir, &held) == 0 &&
           named.st_ino == held.st_ino && named.st_dev == held.st_dev;
}

bool home_absent(int eno)
{
    return eno == ENOENT || eno == ENOTDIR || eno == ELOOP;
}

bool home_empty(int dir)
{
    bool empty = true;
    autofd int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream)
        return false;
    steal_fd(&fd);
    for (struct dirent *e; empty && (e = readdir(stream));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(stream);
    return empty;
}

int home_remove_run(int run, const char *id)
{
    static const char *const files[] = {"ctl", "status"};
    autofd int dir = home_open(run, id);
    if (dir < 0)
        return errno == ENOENT ? 0 : -1;
    for (size_t i = 0; i < CAY_COUNT(files); i++)
        if (unlinkat(dir, files[i], 0) < 0 && errno == EISDIR)
            unlinkat(dir, files[i], AT_REMOVEDIR);
    return unlinkat(run, id, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

static int check_dir(int dir, const char *path, struct cay_error *err)
{
    struct stat ours, now;
    if (fstat(dir, &ours) < 0)
        return cay_fail_errno(err, errno, "cannot look at %s", path);
    bool there = stat(path, &now) == 0;
    /* What cannot be looked at now is not known to be gone. */
    if (ours.st_nlink > 0 &&
        (there ? ours.st_dev == now.st_dev && ours.st_ino == now.st_ino : !home_absent(errno)))
        return 0;
    return cay_fail(err, CAY_E_UNAVAILABLE,
                    "the directory %s was removed or replaced while this program ran; start it "
                    "again when the directory is as it should be",
                    path);
}

int home_check(const struct cay *cay, struct cay_error *err)
{
    char path[CAY_MAX_PATH];
    snprintf(path, sizeof(path), "%s/sandboxes", cay->state_path);
    return check_dir(cay->sandboxes, path, err) < 0 ? -1 : check_dir(cay->run, cay->run_path, err);
}

bool home_misplaced(int eno)
{
    return eno == EISDIR || eno == ELOOP || eno == ENXIO;
}

int home_ctl_address(const struct cay *cay, const char *id, struct sockaddr_un *out, int *hold,
                     struct cay_error *err)
{
    *hold = -1;
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(out->sun_path, sizeof(out->sun_path), "%s/%s/ctl", cay->run_path, id);
    if (n >= 0 && (size_t)n < sizeof(out->sun_path))
        return 0;
    /* Too long for a socket address: by way of the open directory. One that is not there is told by
     * the connect. */
    *hold = home_open(cay->run, id);
    if (*hold < 0 && !home_absent(errno))
        return cay_fail_errno(err, errno, "cannot open %s/%s", cay->run_path, id);
    snprintf(out->sun_path, sizeof(out->sun_path), "/proc/self/fd/%d/ctl", *hold);
    return 0;
}

void home_group_name(const struct cay *cay, const char *id, char out[HOME_GROUP_SIZE])
{
    if (cay->privileged && strcmp(cay->run_path, run_place.root) == 0)
        snprintf(out, HOME_GROUP_SIZE, "%s", id);
    else
        snprintf(out, HOME_GROUP_SIZE, "%s.%08x", id,
                 cay_crc32(cay->run_path, strlen(cay->run_path)));
}

void home_boot_id(char out[40])
{
    ssize_t n = cay_read_file_at(AT_FDCWD, "/proc/sys/kernel/random/boot_id", out, 40);
    if (n < 0)
        n = 0;
    out[strcspn(out, "\n")] = 0;
    if (n == 0)
        out[0] = 0;
}

bool home_rebooted(const char *boot_id)
{
    char now[40];
    home_boot_id(now);
    return boot_id && *boot_id && *now && strcmp(boot_id, now) != 0;
}

uint64_t home_boot_ms(void)
{
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    return (cay_wall_ms() / 1000 - (uint64_t)up.tv_sec) * 1000;
}
