/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/log.h"

#include "base/json.h"
#include "base/util.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

/* What a pipe takes whole or not at all. */
#define MAX_LINE 4096

void log_write(enum log_level level, const char *msg, ...)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    autobuf struct cay_buf line = CAY_BUF(MAX_LINE);
    char when[48];
    struct timespec now;
    struct tm tm;
    va_list args;
    if (level == LOG_DEBUG && !getenv("CAYD_DEBUG"))
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof(when) - n, ".%03ldZ", now.tv_nsec / 1000000);
    buf_str(&line, "{");
    json_str(&line, "time", when);
    json_str(&line, "level", names[level]);
    json_str(&line, "msg", msg);
    va_start(args, msg);
    for (const char *name; (name = va_arg(args, const char *));)
        json_str(&line, name, va_arg(args, const char *));
    va_end(args);
    buf_str(&line, "}\n");
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (buf_failed(&line) || poll(&room, 1, 0) <= 0 || !(room.revents & POLLOUT))
        return;
    if (write(STDERR_FILENO, line.data, line.size) < 0)
        return;
}
