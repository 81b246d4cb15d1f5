/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/msg.h"

#include "base/err.h"
#include "base/util.h"
#include "wire/version.h"

#include <string.h>

/* Keys are part of the protocol: never reused, never renumbered. */
#define M(key, type, member) WIRE_FIELD(key, type, struct msg, member)
static const struct wire_field fields[] = {
    M(1, WIRE_U64, flags),       M(2, WIRE_U64, pid),          M(3, WIRE_U64, signal),
    M(4, WIRE_U64, number),      M(5, WIRE_U64, stream),       M(6, WIRE_U64, offset),
    M(7, WIRE_U64, end),         M(8, WIRE_U64, code),         M(9, WIRE_U64, sys_errno),
    M(10, WIRE_STR, text),       M(11, WIRE_STRV, argv),       M(12, WIRE_STRV, env),
    M(13, WIRE_STR, shell),      M(14, WIRE_STR, cwd),         M(15, WIRE_STR, user),
    M(16, WIRE_STR, name),       M(17, WIRE_U64, rows),        M(18, WIRE_U64, cols),
    M(19, WIRE_U64, timeout_ms), M(20, WIRE_U64, ttl_ms),      M(21, WIRE_U64, idle_ms),
    M(22, WIRE_BYTES, data),     M(23, WIRE_U64, exit_code),   M(24, WIRE_U64, duration_us),
    M(25, WIRE_U64, cpu_us),     M(26, WIRE_U64, peak_memory), M(27, WIRE_U64, started_ms),
    M(28, WIRE_STR, path),       M(29, WIRE_STR, target),      M(30, WIRE_STR, glob),
    M(31, WIRE_STR, pattern),    M(32, WIRE_U64, mode),        M(33, WIRE_U64, uid),
    M(34, WIRE_U64, gid),        M(35, WIRE_U64, size),        M(36, WIRE_U64, mtime_ns),
    M(37, WIRE_U64, inode),      M(38, WIRE_U64, links),
};
#undef M

_Static_assert(FS_ALIVE <= UINT8_MAX, "a type is one byte");

int msg_encode(struct cay_buf *buf, const struct msg *msg, uint8_t fds)
{
    size_t position = frame_begin(buf, (uint8_t)msg->type, msg->tag, fds);
    wire_encode(buf, fields, CAY_COUNT(fields), msg);
    return frame_end(buf, position);
}

bool msg_is_common(unsigned type)
{
    return type == MSG_OK || type == MSG_ERROR || type == OP_STOP;
}

static bool is_request(unsigned type)
{
    return (type >= OP_PREPARE && type < MSG_READY) || (type >= INIT_SPAWN && type < INIT_READY) ||
           (type >= FS_READ && type < FS_ENTRY);
}

/* What a newer peer said must not be acted on by halves. */
static int refuse_unknown(const struct frame *frame, const struct msg *msg, uint16_t field,
                          struct cay_error *err)
{
    uint64_t flags = is_request(msg->type) ? msg->flags & MSG_F_FREE : 0;
    if (msg_is_common(msg->type) || (!field && !flags))
        return 0;
    if (field)
        return cay_fail(err, CAY_E_UNSUPPORTED,
                        WIRE_WHO " does not know field %u of message %u, and must not ignore it; "
                                 "the other side speaks protocol %u.%u",
                        (unsigned)field, (unsigned)msg->type, frame->major, frame->minor);
    return cay_fail(err, CAY_E_UNSUPPORTED,
                    WIRE_WHO " does not know the flags 0x%llx of message %u, and must not ignore "
                             "them; the other side speaks protocol %u.%u",
                    (unsigned long long)flags, (unsigned)msg->type, frame->major, frame->minor);
}

int msg_decode(const struct frame *frame, struct msg *out, struct cay_error *err)
{
    uint16_t unknown;
    struct msg msg = {.type = frame->type, .tag = frame->tag};
    if (wire_decode(frame->payload, frame->size, fields, CAY_COUNT(fields), &msg, &unknown, err) <
        0)
        return -1;
    if (refuse_unknown(frame, &msg, unknown, err) < 0) {
        msg_done(&msg);
        return -1;
    }
    *out = msg;
    return 0;
}

void msg_done(struct msg *msg)
{
    wire_free(fields, CAY_COUNT(fields), msg);
}

int msg_stats(const struct msg *msg, struct cay_stats *out, struct cay_error *err)
{
    if (msg->type != MSG_STATS || !msg->data.size)
        return cay_fail(err, CAY_E_INTERNAL, "the keeper gave no numbers");
    struct cay_stats stats = {0};
    memcpy(&stats, msg->data.data, CAY_MIN(msg->data.size, sizeof(stats)));
    *out = stats;
    return 0;
}

int msg_to_error(const struct msg *msg, struct cay_error *err)
{
    /* init's answers have types of their own, and carry an error as well. */
    if (msg->type != MSG_ERROR && !msg->code)
        return cay_fail(err, CAY_E_INTERNAL, "the answer is an unexpected one (%u)", msg->type);
    const char *text = msg->text ? msg->text : "unknown error";
    /* The other side names itself; both names are what is needed. */
    if (msg->code == CAY_E_VERSION)
        return cay_fail(err, CAY_E_VERSION, "%.200s, this is " WIRE_WHO "; " MSG_VERSION_ADVICE,
                        text);
    return cay_fail_copy(err, (unsigned)msg->code, (int)msg->sys_errno, text);
}
