/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/status.h"

#include "base/err.h"
#include "base/util.h"
#include "wire/field.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#ifndef F_OFD_SETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define S(key, type, member) WIRE_FIELD(key, type, struct status, member)
static const struct wire_field fields[] = {
    S(1, WIRE_U64, state),           S(2, WIRE_STR, reason),     S(3, WIRE_STR, image),
    S(4, WIRE_STR, boot_id),         S(5, WIRE_U64, created_ms), S(6, WIRE_U64, ended_ms),
    S(7, WIRE_U64, ttl_deadline_us), S(8, WIRE_U64, keeper_pid), S(9, WIRE_U64, init_pid),
    S(10, WIRE_U64, processes),      S(11, WIRE_U64, id_range),  S(12, WIRE_U64, ephemeral),
    S(13, WIRE_STRV, labels),        S(14, WIRE_STR, instance),  S(15, WIRE_STR, version),
    S(16, WIRE_U64, log_end),
};
#undef S

int status_encode(const struct status *status, struct cay_buf *out)
{
    struct status own = *status;
    if (!own.version)
        own.version = CAY_VERSION;
    return wire_encode(out, fields, CAY_COUNT(fields), &own);
}

int status_decode(const char *bytes, size_t size, struct status *out, struct cay_error *err)
{
    uint16_t unknown; /* nothing is refused that is only shown */
    struct status status = {0};
    if (wire_decode(bytes, size, fields, CAY_COUNT(fields), &status, &unknown, err) < 0)
        return -1;
    if (status.state > CAY_STATE_LOST) /* of a newer version */
        status.state = status.ended_ms ? CAY_STATE_EXITED : CAY_STATE_RUNNING;
    *out = status;
    return 0;
}

struct status status_foreign(const char *bytes, size_t size, bool kept, char reason[160])
{
    struct status status = {0};
    if (status_decode(bytes, size, &status, NULL) < 0)
        status.state = kept ? CAY_STATE_RUNNING : CAY_STATE_EXITED;
    snprintf(reason, 160, "%.80s (cay %.20s, of another protocol)",
             status.reason ? status.reason : "its status cannot be read",
             status.version ? status.version : "?");
    status.reason = reason;
    return status;
}

void status_done(struct status *status)
{
    wire_free(fields, CAY_COUNT(fields), status);
}

static char **copy_list(const char *const *list)
{
    size_t n = 0;
    while (list && list[n])
        n++;
    char **copy = calloc(n + 1, sizeof(*copy));
    for (size_t i = 0; copy && i < n; i++) {
        copy[i] = strdup(list[i]);
        if (!copy[i])
            break;
    }
    return copy;
}

int status_to_info(const struct status *status, const char *id, struct cay_info *out,
                   struct cay_error *err)
{
    uint64_t now = cay_now_us();
    struct cay_info info = {
        .state = (enum cay_state)status->state,
        .created_ms = status->created_ms,
        .ended_ms = status->ended_ms,
        .keeper_pid = status->ended_ms ? 0 : (pid_t)status->keeper_pid,
        .init_pid = status->ended_ms ? 0 : (pid_t)status->init_pid,
        .processes = (uint32_t)status->processes,
        .labels = copy_list(status->labels),
    };
    if (!info.labels)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    if (status->ttl_deadline_us && !status->ended_ms)
        info.ttl_left_ms =
            status->ttl_deadline_us > now ? (status->ttl_deadline_us - now) / 1000 + 1 : 1;
    snprintf(info.id, sizeof(info.id), "%s", id);
    snprintf(info.reason, sizeof(info.reason), "%s", status->reason ? status->reason : "");
    snprintf(info.image, sizeof(info.image), "%s", status->image ? status->image : "");
    *out = info;
    return 0;
}

void cay_info_done(struct cay_info *info)
{
    if (!info || !info->labels)
        return;
    for (char **l = info->labels; *l; l++)
        free(*l);
    free(info->labels);
    info->labels = NULL;
}

int status_lock(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

int status_open(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == EROFS)
        fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return fd;
}

bool status_locked(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_GETLK, &lock) < 0 || lock.l_type != F_UNLCK;
}
