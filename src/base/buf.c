/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "base/utf8.h"
#include "base/util.h"

#include <stdio.h>
#include <string.h>

void buf_done(struct cay_buf *buf)
{
    free(buf->data);
    buf->data = NULL;
    buf->size = buf->capacity = 0;
}

char *buf_room(struct cay_buf *buf, size_t size)
{
    /* One byte is always kept for the NUL of buf_cstr. */
    if (buf->failed || size > buf->max || buf->size > buf->max - size) {
        buf->failed = true;
        return NULL;
    }
    if (buf->size + size + 1 > buf->capacity) {
        size_t want = CAY_MAX(buf->capacity * 2, buf->size + size + 1);
        want = CAY_MIN(CAY_MAX(want, (size_t)64), buf->max + 1);
        char *data = realloc(buf->data, want);
        if (!data) {
            buf->failed = true;
            return NULL;
        }
        buf->data = data;
        buf->capacity = want;
    }
    return buf->data + buf->size;
}

int buf_add(struct cay_buf *buf, const void *bytes, size_t size)
{
    char *room = buf_room(buf, size);
    if (!room)
        return -1;
    if (size)
        memcpy(room, bytes, size);
    buf->size += size;
    return 0;
}

int buf_str(struct cay_buf *buf, const char *text)
{
    return buf_add(buf, text, strlen(text));
}

int buf_fmt(struct cay_buf *buf, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *room = n < 0 ? NULL : buf_room(buf, (size_t)n);
    if (!room)
        return -1;
    va_start(ap, fmt);
    vsnprintf(room, (size_t)n + 1, fmt, ap);
    va_end(ap);
    buf->size += (size_t)n;
    return 0;
}

size_t buf_hand_out(struct cay_buf *buf, size_t *sent, void *out, size_t size)
{
    size_t n = CAY_MIN(buf->size - *sent, size);
    if (n == 0) {
        buf->size = *sent = 0;
        return 0;
    }
    memcpy(out, buf->data + *sent, n);
    *sent += n;
    return n;
}

void buf_eat(struct cay_buf *buf, size_t size)
{
    if (size >= buf->size) {
        buf->size = 0;
        return;
    }
    memmove(buf->data, buf->data + size, buf->size - size);
    buf->size -= size;
}

const char *buf_cstr(struct cay_buf *buf)
{
    if (!buf_room(buf, 0))
        return NULL;
    buf->data[buf->size] = 0;
    return buf->data;
}

char *buf_steal(struct cay_buf *buf, size_t *size)
{
    if (!buf_cstr(buf))
        return NULL;
    char *data = buf->data;
    if (size)
        *size = buf->size;
    buf->data = NULL;
    buf->size = buf->capacity = 0;
    return data;
}

int buf_json_n(struct cay_buf *buf, const char *text, size_t size)
{
    static const char escapes[] = {
        ['"'] = '"', ['\\'] = '\\', ['\n'] = 'n', ['\t'] = 't', ['\r'] = 'r'};
    buf_add(buf, "\"", 1);
    for (size_t i = 0; i < size;) {
        size_t bad, n = utf8_char(text + i, size - i, &bad);
        if (n == 0) {
            buf_str(buf, "\xef\xbf\xbd");
            i += bad;
            continue;
        }
        unsigned char c = (unsigned char)text[i];
        if (c < sizeof(escapes) && escapes[c])
            buf_fmt(buf, "\\%c", escapes[c]);
        else if (c < 0x20 || c == 0x7f)
            buf_fmt(buf, "\\u%04x", c);
        else
            buf_add(buf, text + i, n);
        i += n;
    }
    return buf_add(buf, "\"", 1);
}

int buf_json(struct cay_buf *buf, const char *text)
{
    return buf_json_n(buf, text, strlen(text));
}
