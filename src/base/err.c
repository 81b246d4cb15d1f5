/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int http;
} codes[] = {[CAY_OK] = {"ok", 200},
#define CAY_X(sym, json, status, text) [CAY_E_##sym] = {json, status},
             CAY_ERROR_TABLE(CAY_X)
#undef CAY_X
};

static const struct {
    int eno;
    enum cay_code code;
} of_errno[] = {
    {EPERM, CAY_E_DENIED},         {EACCES, CAY_E_DENIED},          {EROFS, CAY_E_DENIED},
    {ENOENT, CAY_E_NOT_FOUND},     {ESRCH, CAY_E_NOT_FOUND},        {ENOTDIR, CAY_E_INVALID},
    {EISDIR, CAY_E_INVALID},       {EINVAL, CAY_E_INVALID},         {ELOOP, CAY_E_INVALID},
    {ENAMETOOLONG, CAY_E_INVALID}, {EXDEV, CAY_E_INVALID},          {ENXIO, CAY_E_INVALID},
    {EEXIST, CAY_E_CONFLICT},      {ENOTEMPTY, CAY_E_CONFLICT},     {EBUSY, CAY_E_CONFLICT},
    {ETXTBSY, CAY_E_CONFLICT},     {ETIMEDOUT, CAY_E_TIMEOUT},      {EFBIG, CAY_E_TOO_LARGE},
    {E2BIG, CAY_E_TOO_LARGE},      {EMSGSIZE, CAY_E_TOO_LARGE},     {EMFILE, CAY_E_LIMIT},
    {ENFILE, CAY_E_LIMIT},         {EUSERS, CAY_E_LIMIT},           {EAGAIN, CAY_E_UNAVAILABLE},
    {ENOSYS, CAY_E_UNSUPPORTED},   {EOPNOTSUPP, CAY_E_UNSUPPORTED}, {ENOSPC, CAY_E_NO_SPACE},
    {EDQUOT, CAY_E_NO_SPACE},      {ENOMEM, CAY_E_NO_SPACE},        {EPIPE, CAY_E_GONE},
    {ECONNRESET, CAY_E_GONE},      {ECONNREFUSED, CAY_E_GONE},
};

const char *cay_code_name(enum cay_code code)
{
    return (size_t)code < sizeof(codes) / sizeof(*codes) ? codes[code].name : "internal";
}

int cay_code_http(enum cay_code code)
{
    return (size_t)code < sizeof(codes) / sizeof(*codes) ? codes[code].http : 500;
}

enum cay_code cay_code_of_name(const char *name)
{
    for (size_t i = 0; i < sizeof(codes) / sizeof(*codes); i++)
        if (strcmp(codes[i].name, name) == 0)
            return (enum cay_code)i;
    return CAY_E_INTERNAL;
}

enum cay_code cay_code_of_errno(int eno)
{
    for (size_t i = 0; i < sizeof(of_errno) / sizeof(*of_errno); i++)
        if (of_errno[i].eno == eno)
            return of_errno[i].code;
    return CAY_E_INTERNAL;
}

/* Errors are one line wherever they end up: a terminal, a log, a JSON string. */
static void keep_one_line(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && c[1] >= 0x80 &&
                 c[1] < 0xa0) /* C1 controls, which terminals obey too */
            c[0] = c[1] = '?';
    }
}

static void set(struct cay_error *err, enum cay_code code, int eno, const char *fmt, va_list ap)
{
    err->code = code;
    err->sys_errno = eno;
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
    keep_one_line(err->text);
}

int cay_fail(struct cay_error *err, enum cay_code code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, code, 0, fmt, ap);
        va_end(ap);
    }
    return -1;
}

/* What it takes to mend it, where the C library's words do not say. */
static const char *text_of(int eno)
{
    return eno == EMFILE   ? "too many open files (ulimit -n)"
           : eno == ENFILE ? "too many open files on this host (fs.file-max)"
           : eno == EFBIG  ? "file too large (ulimit -f, or the file system's own limit)"
                           : strerror(eno);
}

int cay_fail_errno(struct cay_error *err, int eno, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        set(err, cay_code_of_errno(eno), eno, fmt, ap);
        va_end(ap);
        size_t n = strlen(err->text);
        snprintf(err->text + n, sizeof(err->text) - n, ": %s", text_of(eno));
    }
    return -1;
}

int cay_fail_context(struct cay_error *err, const char *fmt, ...)
{
    if (err) {
        char old[sizeof(err->text)], head[sizeof(err->text)];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(head, sizeof(head), fmt, ap);
        va_end(ap);
        memcpy(old, err->text, sizeof(old));
        size_t n = strlen(head) < sizeof(head) - 3 ? strlen(head) : sizeof(head) - 3;
        memcpy(err->text, head, n);
        memcpy(err->text + n, ": ", 2);
        snprintf(err->text + n + 2, sizeof(err->text) - n - 2, "%s", old);
        keep_one_line(err->text);
    }
    return -1;
}

int cay_fail_copy(struct cay_error *err, unsigned code, int eno, const char *text)
{
    if (err) {
        err->code = code > 0 && code < sizeof(codes) / sizeof(*codes) ? (enum cay_code)code
                                                                      : CAY_E_INTERNAL;
        err->sys_errno = eno;
        snprintf(err->text, sizeof(err->text), "%s", text);
        keep_one_line(err->text);
    }
    return -1;
}
