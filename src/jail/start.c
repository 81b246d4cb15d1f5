/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jail_start: one clone3 makes all namespaces; the parent maps ids and, as root, makes the shifted
 * mounts; the child builds the root, gives everything up and becomes init.
 *
 *   parent                              child
 *   clone3 ---------------------------> (waits)
 *   id map, mount descriptors --------> uid 0, root, /proc /sys /dev, binds, pivot
 *   init's program, v1 cgroups -------> joins the v1 cgroups, cgroup namespace, ucounts
 *   <---- ready (+ disk, meminfo...) -- capabilities, seccomp
 *   <------------- end of file -------- exec of init from a sealed memfd
 *
 * The wire between them is a SOCK_SEQPACKET pair that the exec closes. A struct cay_error from the
 * child ends it all; the child is trusted until it executes init, which nothing untrusted precedes.
 */
#include "base/err.h"
#include "base/limits.h"
#include "base/sock.h"
#include "base/util.h"
#include "jail/child.h"
#include "jail/idmap.h"
#include "jail/sys.h"

#include <grp.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define NAMESPACES \
    (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)

/* Of init; commands add to it (src/init/child.c). */
#define OOM_SCORE 500

#define MAX_TREES (2 * JAIL_MAX_OVERLAYS + CAY_MAX_MOUNTS)

/* Descriptors that init finds: see src/init. */
enum { INIT_SOCK = 3, INIT_CGROUP = 4, INIT_EXE = 5 };

struct wires {
    int sync[2]; /* 0: parent, 1: child */
    int init[2]; /* 0: parent (keeper), 1: init */
    int exe;     /* sealed memfd with init's program */
    int cgroup;  /* detached read-only mount of the sandbox's cgroup, for
                  * CLONE_INTO_CGROUP by init */
};

static void wires_done(struct wires *wires)
{
    close_fd(&wires->sync[0]);
    close_fd(&wires->sync[1]);
    close_fd(&wires->init[0]);
    close_fd(&wires->init[1]);
    close_fd(&wires->exe);
    close_fd(&wires->cgroup);
}

/* ---- the child ------------------------------------------------------------------------------- */

static int recv_trees(int sync, const struct jail_plan *plan, struct jail_trees *trees,
                      struct cay_error *err)
{
    int fds[MAX_TREES];
    size_t total = plan->privileged ? plan->n_overlays + plan->n_binds : 0, got = 0, used = 0;
    char byte;
    for (size_t i = 0; plan->privileged && i < plan->n_overlays; i++)
        total += plan->overlays[i].cover >= 0;
    do {
        if (sock_recv(sync, &byte, 1, fds, &got, total) <= 0)
            return cay_fail(err, CAY_E_INTERNAL, "the parent went away");
    } while (got < total);
    for (size_t i = 0; i < plan->n_overlays; i++) {
        trees->overlays[i] = total ? fds[used++] : -1;
        trees->covers[i] = total && plan->overlays[i].cover >= 0 ? fds[used++] : -1;
    }
    for (size_t i = 0; i < plan->n_binds; i++)
        trees->binds[i] = total ? fds[used++] : -1;
    return 0;
}

/*
 * Takes what the parent made meanwhile: init's program, the view of the cgroup for init ('c':
 * rootless there is none, see rootfs_cgroup), and the v1 groups to enter. The cgroup namespace
 * comes last: its root is where we are.
 */
static int enter_cgroups(const struct jail_plan *plan, struct wires *wires, struct cay_error *err)
{
    int fds[CGROUP_PARTS + 2];
    size_t n = 0, used = 0;
    char what;
    if (sock_recv(wires->sync[1], &what, 1, fds, &n, CAY_COUNT(fds)) <= 0 || n < 1)
        return cay_fail(err, CAY_E_INTERNAL, "the parent went away");
    wires->exe = fds[used++];
    if (what == 'c' && n > 1)
        wires->cgroup = fds[used++];
    if (cgroup_enter_tasks(fds + used, n - used) < 0)
        return cay_fail_errno(err, errno, "cannot enter the sandbox's cgroups");
    if (cgroup_settle_self(plan->cgroup) < 0)
        return cay_fail_errno(err, errno, "cannot make a cgroup namespace");
    return 0;
}

static int loopback_up(struct cay_error *err)
{
    struct ifreq request = {.ifr_name = "lo"};
    autofd int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (sock < 0 || ioctl(sock, SIOCSIFFLAGS, &request) < 0)
        return cay_fail_errno(err, errno, "cannot bring up the loopback interface");
    return 0;
}

int become_root(const struct jail_plan *plan, struct cay_error *err)
{
    /* Where setgroups was given up for the map, the kernel refuses it; the caller's groups then
     * stay, which grant nothing that the caller himself did not have. */
    if (setgroups(0, NULL) < 0 && (plan->privileged || plan->n_uids > 1))
        return cay_fail_errno(err, errno, "cannot drop groups");
    if (syscall(SYS_setresgid, 0, 0, 0) < 0 || syscall(SYS_setresuid, 0, 0, 0) < 0)
        return cay_fail_errno(err, errno, "cannot become root of the user namespace");
    return 0;
}

static int join_namespaces(const struct jail_plan *plan, struct cay_error *err)
{
    struct mount_attr private = {.propagation = 1 << 18}; /* MS_PRIVATE */
    if (become_root(plan, err) < 0)
        return -1;
    if (sethostname(plan->hostname, strlen(plan->hostname)) < 0)
        return cay_fail_errno(err, errno, "cannot set the host name");
    if (sys_mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &private) < 0)
        return cay_fail_errno(err, errno, "cannot make mounts private");
    return loopback_up(err);
}

/* A number above the limit on open files is EINVAL. */
static int no_high_fd(struct cay_error *err)
{
    return cay_fail_errno(err, errno == EINVAL ? EMFILE : errno, "cannot arrange descriptors");
}

/* Puts init's descriptors where it expects them; everything else is closed. */
static int arrange_fds(struct wires *wires, int null, struct cay_error *err)
{
    const int from[] = {null, null, null, wires->init[1], wires->cgroup, wires->exe};
    int high[CAY_COUNT(from)];
    for (size_t i = 0; i < CAY_COUNT(from); i++) {
        high[i] = from[i] < 0 ? -1 : fcntl(from[i], F_DUPFD_CLOEXEC, 64);
        if (from[i] >= 0 && high[i] < 0)
            return no_high_fd(err);
    }
    int sync = fcntl(wires->sync[1], F_DUPFD_CLOEXEC, 64);
    if (sync < 0)
        return no_high_fd(err);
    for (size_t i = 0; i < CAY_COUNT(from); i++) {
        if (high[i] < 0)
            close((int)i);
        else if (dup3(high[i], (int)i, i == INIT_EXE ? O_CLOEXEC : 0) < 0)
            return cay_fail_errno(err, errno, "cannot arrange descriptors");
    }
    wires->sync[1] = sync;
    sys_close_range(INIT_EXE + 1, (unsigned)sync - 1);
    sys_close_range((unsigned)sync + 1, ~0u);
    return 0;
}

static int build(const struct jail_plan *plan, struct wires *wires, struct cay_error *err)
{
    int binds[CAY_MAX_MOUNTS];
    struct jail_trees trees = {.binds = binds};
    struct jail_root root = {-1, -1, -1, -1, -1, -1};
    char ready = 'r';
    if (!plan->privileged && cgroup_dir(plan->cgroup) >= 0)
        wires->cgroup = rootfs_cgroup(cgroup_dir(plan->cgroup));
    if (recv_trees(wires->sync[1], plan, &trees, err) < 0 || join_namespaces(plan, err) < 0 ||
        rootfs_build(plan, &trees, &root, err) < 0 || pseudo_mount(plan, &root, err) < 0 ||
        rootfs_binds(plan, &trees, &root, err) < 0 || rootfs_pivot(&root, err) < 0 ||
        enter_cgroups(plan, wires, err) < 0 || pseudo_close(plan, &root, err) < 0)
        return -1;
    const int told[] = {root.disk, root.meminfo, root.cpuinfo};
    size_t n = root.meminfo < 0 ? 1 : root.cpuinfo < 0 ? 2 : 3;
    if (sock_send(wires->sync[1], &ready, 1, told, n) < 0)
        return cay_fail_errno(err, errno, "the parent went away");
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return cay_fail_errno(err, errno, "cannot open /dev/null");
    if (arrange_fds(wires, null, err) < 0 || confine(plan, err) < 0)
        return -1;
    /* Whoever kills the keeper kills the sandbox; set last, a change of credentials
     * would clear it. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return cay_fail_errno(err, errno, "cannot tie init to the keeper");
    return 0;
}

_Noreturn static void child(const struct jail_plan *plan, struct wires *wires)
{
    struct cay_error err = {0};
    bool has_cgroup = cgroup_dir(plan->cgroup) >= 0;
    sigset_t none;
    /* If the parent dies, everything that we read from must end: nothing of ours may hold its other
     * side, nor the parent's own connections and locks. */
    close_fd(&wires->sync[0]);
    close_fd(&wires->init[0]);
    for (size_t i = 0; i < CAY_COUNT(plan->private_fds); i++)
        if (plan->private_fds[i] >= 0)
            close(plan->private_fds[i]);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(022);
    if (build(plan, wires, &err) == 0) {
        char *argv[] = {"cay-init", has_cgroup ? "cgroup" : "plain", NULL};
        char *env[] = {NULL};
        syscall(SYS_execveat, INIT_EXE, "", argv, env, AT_EMPTY_PATH);
        cay_fail_errno(&err, errno, "cannot execute init");
    }
    sock_send(wires->sync[1], &err, sizeof(err), NULL, 0);
    _exit(1);
}

/* ---- the parent ------------------------------------------------------------------------------ */

/* init's program as a sealed memfd: nothing can write it, not even through /proc/1/exe. */
static int seal_init(const struct jail_plan *plan, struct cay_error *err)
{
    int fd = memfd_create("cay-init", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("cay-init", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    autofd int owned = fd;
    if (owned < 0 || cay_write_all(owned, plan->init_image, plan->init_size) < 0 ||
        fchmod(owned, 0555) < 0 ||
        fcntl(owned, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        return cay_fail_errno(err, errno, "cannot make a sealed copy of init");
    return steal_fd(&owned);
}

static int wires_init(struct wires *wires, struct cay_error *err)
{
    *wires = (struct wires){{-1, -1}, {-1, -1}, -1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wires->sync) < 0 ||
        sock_pair(wires->init) < 0)
        return cay_fail_errno(err, errno, "cannot make a socket pair");
    return 0;
}

/*
 * A user namespace is charged to whoever makes it: inotify instances, pending signals, locked
 * memory and more. As root that must be the sandbox's own root, not the host's, or one sandbox
 * could use up the budget of all and of the host. The file system id stays root's: it decides about
 * the cgroup to be born in.
 */
static pid_t clone_as_owner(const struct jail_plan *plan, const struct sys_clone_args *args)
{
    if (!plan->privileged)
        return sys_clone3(args);
    if (syscall(SYS_setresuid, -1, plan->uids[0].outside, -1) < 0)
        return -1;
    setfsuid(0);
    pid_t pid = sys_clone3(args);
    int eno = errno;
    if (pid != 0 && syscall(SYS_setresuid, -1, 0, -1) < 0)
        abort(); /* cannot happen: root is our real and saved id */
    errno = eno;
    return pid;
}

/* What a helper that clones in our place tells us. */
struct birth {
    pid_t pid;
    int pidfd, eno;
};

/*
 * In the helper, which lives where init is to live: it takes the cgroup namespace that was made for
 * init, and init inherits both. As our child (CLONE_PARENT), not the helper's.
 */
static pid_t bear(const struct jail_plan *plan, struct birth *birth)
{
    const struct sys_clone_args args = {
        .flags = NAMESPACES | CLONE_PIDFD | CLONE_PARENT,
        .pidfd = (uint64_t)(uintptr_t)&birth->pidfd,
    };
    pid_t pid =
        setns(cgroup_space(plan->cgroup), CLONE_NEWCGROUP) < 0 ? -1 : clone_as_owner(plan, &args);
    if (pid == 0)
        return 0;
    birth->eno = errno;
    birth->pid = pid;
    _exit(0);
}

/* Neither can we be in that namespace and clone into it from outside, nor may init enter it. */
static pid_t clone_by_helper(const struct jail_plan *plan, int *pidfd)
{
    struct sys_clone_args args = {
        .flags = CLONE_INTO_CGROUP | CLONE_FILES,
        .exit_signal = SIGCHLD,
        .cgroup = (uint64_t)cgroup_birth(plan->cgroup),
    };
    struct birth *birth =
        mmap(NULL, sizeof(*birth), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (birth == MAP_FAILED)
        return -1;
    *birth = (struct birth){-1, -1, ECHILD};
    pid_t helper = sys_clone3(&args);
    if (helper == 0)
        return bear(plan, birth);
    if (helper < 0)
        birth->eno = errno;
    while (helper > 0 && waitpid(helper, NULL, 0) < 0 && errno == EINTR)
        ;
    const struct birth told = *birth;
    munmap(birth, sizeof(*birth));
    *pidfd = told.pidfd;
    errno = told.eno;
    return told.pid;
}

static int clone_child(const struct jail_plan *plan, struct wires *wires, struct jail *out,
                       struct cay_error *err)
{
    int dir = cgroup_birth(plan->cgroup);
    struct sys_clone_args args = {
        .flags = NAMESPACES | CLONE_PIDFD | (dir >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uint64_t)(uintptr_t)&out->pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = dir >= 0 ? (uint64_t)dir : 0,
    };
    out->pid = cgroup_space(plan->cgroup) >= 0 ? clone_by_helper(plan, &out->pidfd)
                                               : clone_as_owner(plan, &args);
    if (out->pid == 0)
        child(plan, wires);
    if (out->pid > 0)
        return 0;
    if (errno == EPERM || errno == ENOSPC)
        return cay_fail(
            err, CAY_E_UNSUPPORTED,
            "this host does not let us make user namespaces; 'cay doctor' says what to change");
    if (errno == EINVAL && plan->privileged)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        "root has no ids for sandboxes here, as this is a user namespace (another "
                        "sandbox, a container); run cay as an ordinary user: su user -c 'cay run "
                        "--image dir:PATH ...'");
    return cay_fail_errno(err, errno, "cannot make namespaces");
}

/* A file system that cannot shift owners is used as it is: its files then appear as nobody's.
 * `userns` -1: so it is to be. */
static int open_layer(int dir, const char *target, int userns, struct cay_error *err)
{
    autofd int tree = sys_open_tree(dir, "", OPEN_TREE_CLONE | AT_EMPTY_PATH);
    if (tree < 0)
        return cay_fail_errno(err, errno, "cannot open the image layer of %s", target);
    if (userns >= 0 && idmap_tree(tree, userns) < 0 && errno != EINVAL && errno != EOPNOTSUPP &&
        errno != ENOSYS)
        return cay_fail_errno(err, errno, "cannot shift the owners of the image's %s", target);
    return steal_fd(&tree);
}

static int send_fds(int sync, const int *fds, size_t n)
{
    char byte = 'g';
    do {
        size_t part = CAY_MIN(n, (size_t)SOCK_MAX_FDS);
        if (sock_send(sync, &byte, 1, fds, part) < 0)
            return -1;
        fds += part;
        n -= part;
    } while (n > 0);
    return 0;
}

static int send_trees(const struct jail_plan *plan, int sync, struct jail *out,
                      struct cay_error *err)
{
    int fds[MAX_TREES];
    size_t n = 0;
    int result = 0;
    char path[64];
    if (plan->privileged) {
        snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)out->pid);
        autofd int userns = open(path, O_RDONLY | O_CLOEXEC);
        if (userns < 0)
            result = cay_fail_errno(err, errno, "cannot open the user namespace");
        for (size_t i = 0; result == 0 && i < plan->n_overlays; i++) {
            const struct jail_overlay *overlay = &plan->overlays[i];
            const int dirs[] = {overlay->lower, overlay->cover};
            const int owners[] = {overlay->unshifted ? -1 : userns, userns};
            for (size_t j = 0; result == 0 && j < 2 && dirs[j] >= 0; j++)
                result =
                    (fds[n++] = open_layer(dirs[j], overlay->target, owners[j], err)) < 0 ? -1 : 0;
        }
        if (result == 0 && plan->disk >= 0 && idmap_tree(plan->disk, userns) < 0)
            result = cay_fail_errno(err, errno, "cannot shift the owners of the sandbox's disk");
        for (size_t i = 0; result == 0 && i < plan->n_binds; i++, n++)
            if ((fds[n] = idmap_bind(plan, &plan->binds[i], err)) < 0)
                result = -1;
    }
    if (result == 0 && send_fds(sync, fds, n) < 0)
        result = cay_fail_errno(err, errno, "the sandbox died while it was being made");
    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return result;
}

/*
 * Taking a mount namespace down waits for an RCU grace period, about a millisecond. Init's death
 * must not wait for that: we hold the namespace, and it goes with us, when nobody waits any more.
 */
static int hold_mounts(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)pid);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/*
 * Short of memory, the host is to lose what runs in sandboxes before its own services. Written from
 * here, as root, the sandbox cannot take it back. Never less than what we have ourselves; a wish.
 */
static void raise_score(pid_t pid)
{
    char path[64], text[16];
    if (cay_read_file_at(AT_FDCWD, "/proc/self/oom_score_adj", text, sizeof(text)) < 0 ||
        strtol(text, NULL, 10) >= OOM_SCORE)
        return;
    snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", (int)pid);
    snprintf(text, sizeof(text), "%d", OOM_SCORE);
    (void)cay_write_file_at(AT_FDCWD, path, text);
}

static int do_meanwhile(const struct jail_plan *plan, struct wires *wires, struct cay_error *err)
{
    int fds[CGROUP_PARTS + 2];
    size_t n = 0;
    wires->exe = seal_init(plan, err);
    if (wires->exe < 0 || (plan->meanwhile && plan->meanwhile(plan->data, wires->init[0], err) < 0))
        return -1;
    fds[n++] = wires->exe;
    wires->cgroup = plan->privileged ? cgroup_share(plan->cgroup) : -1;
    if (wires->cgroup >= 0)
        fds[n++] = wires->cgroup;
    n += cgroup_tasks(plan->cgroup, fds + n);
    if (sock_send(wires->sync[0], wires->cgroup >= 0 ? "c" : "-", 1, fds, n) < 0)
        return cay_fail_errno(err, errno, "the sandbox died while it was being made");
    return 0;
}

static void repeat_error(struct cay_error *told, struct cay_error *err)
{
    told->text[sizeof(told->text) - 1] = 0;
    cay_fail_copy(err, told->code, told->sys_errno, told->text);
}

/* The child has failed and said why: that counts more than our not reaching it. */
static bool has_failed(int sync, struct cay_error *err)
{
    struct cay_error told;
    ssize_t n;
    do {
        n = recv(sync, &told, sizeof(told), MSG_DONTWAIT);
    } while (n == 1 || (n < 0 && (errno == EINTR || errno == ECONNRESET)));
    if (n != sizeof(told))
        return false;
    repeat_error(&told, err);
    return true;
}

/* Reads what the child has to say until the exec of init closes its end. */
static int await_exec(int sync, struct jail *out, struct cay_error *err)
{
    bool ready = false, reset = false;
    for (;;) {
        struct cay_error told;
        size_t n_fds = 0;
        int fds[3] = {-1, -1, -1};
        ssize_t n = sock_recv(sync, &told, sizeof(told), fds, &n_fds, CAY_COUNT(fds));
        if (n_fds) {
            out->disk = fds[0];
            out->meminfo = fds[1];
            out->cpuinfo = fds[2];
        }
        if (n == sizeof(told)) {
            repeat_error(&told, err);
            return -1;
        }
        /* It died with something of ours unread: told first, once, and then what it had said. */
        if (n < 0 && errno == ECONNRESET && !reset) {
            reset = true;
            continue;
        }
        if (n == 1) {
            ready = true;
            continue;
        }
        if (n == 0 && ready)
            return 0;
        return cay_fail(err, CAY_E_INTERNAL, "the sandbox died while it was being made");
    }
}

int jail_start(const struct jail_plan *plan, struct jail *out, struct cay_error *err)
{
    struct wires wires;
    struct jail jail = JAIL_NONE;
    int result = -1;
    if (wires_init(&wires, err) < 0 || clone_child(plan, &wires, &jail, err) < 0)
        goto done;
    close_fd(&wires.sync[1]);
    close_fd(&wires.init[1]);
    if (idmap_write(jail.pid, plan, err) == 0 && send_trees(plan, wires.sync[0], &jail, err) == 0) {
        struct cay_error ours;
        jail.mounts = hold_mounts(jail.pid);
        raise_score(jail.pid);
        if (do_meanwhile(plan, &wires, &ours) == 0)
            result = await_exec(wires.sync[0], &jail, err);
        else if (!has_failed(wires.sync[0], err))
            cay_fail_copy(err, ours.code, ours.sys_errno, ours.text);
    }
    if (result == 0)
        result = cgroup_entered(plan->cgroup, err);
    if (result == 0) {
        jail.sock = steal_fd(&wires.init[0]);
        *out = jail;
        goto done;
    }
    sys_pidfd_kill(jail.pidfd, SIGKILL);
    while (waitpid(jail.pid, NULL, 0) < 0 && errno == EINTR)
        ;
    jail_done(&jail);
done:
    wires_done(&wires);
    return result;
}

void jail_done(struct jail *jail)
{
    close_fd(&jail->pidfd);
    close_fd(&jail->sock);
    close_fd(&jail->meminfo);
    close_fd(&jail->cpuinfo);
    close_fd(&jail->disk);
    close_fd(&jail->mounts);
    close_fd(&jail->users);
    close_fd(&jail->names);
}
