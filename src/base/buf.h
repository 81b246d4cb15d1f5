/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte buffer with a mandatory maximum. Appending beyond it, or out of memory, marks the buffer
 * as failed and changes nothing; the caller may check once at the end (`buf_failed`).
 */
#ifndef CAY_BASE_BUF_H
#define CAY_BASE_BUF_H

#include <cay/cay.h>
#include <stdarg.h>

struct cay_buf {
    char *data;
    size_t size, capacity, max;
    bool failed;
};

#define CAY_BUF(maximum) ((struct cay_buf){.max = (maximum)})

void buf_done(struct cay_buf *buf);
#define autobuf __attribute__((cleanup(buf_done)))

int buf_add(struct cay_buf *buf, const void *bytes, size_t size);
int buf_str(struct cay_buf *buf, const char *text);
int buf_fmt(struct cay_buf *buf, const char *fmt, ...) CAY_PRINTF(2, 3);
/* Room for `size` more bytes at data + size, for a read(); NULL beyond the maximum. */
char *buf_room(struct cay_buf *buf, size_t size);
/* Copies up to `size` bytes of what is behind `*sent`, and moves that on; 0: all is sent, and the
 * buffer is empty again. */
size_t buf_hand_out(struct cay_buf *buf, size_t *sent, void *out, size_t size);
/* Drops `size` bytes from the front. */
void buf_eat(struct cay_buf *buf, size_t size);
/* Ends with a NUL that is not counted; NULL if the buffer failed. Borrowed. */
const char *buf_cstr(struct cay_buf *buf);
/* Hands over the bytes (NUL-terminated, owned by the caller); NULL if the buffer failed. */
char *buf_steal(struct cay_buf *buf, size_t *size);

static inline bool buf_failed(const struct cay_buf *buf)
{
    return buf->failed;
}

/* JSON out: a quoted, escaped string; invalid UTF-8 becomes U+FFFD. */
int buf_json(struct cay_buf *buf, const char *text);
int buf_json_n(struct cay_buf *buf, const char *text, size_t size);

#endif
