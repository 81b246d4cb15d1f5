/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fronts/text.h"

#include "base/utf8.h"
#include "base/util.h"

#include <string.h>

/* ---- excerpts -------------------------------------------------------------------------------- */

void excerpt_init(struct excerpt *e, size_t keep)
{
    *e = (struct excerpt){.keep = keep, .head = CAY_BUF(3 * keep), .tail = CAY_BUF(2 * keep)};
}

void excerpt_done(struct excerpt *e)
{
    buf_done(&e->head);
    buf_done(&e->tail);
}

void excerpt_add(struct excerpt *e, const char *data, size_t size)
{
    e->total += size;
    size_t n = e->head.size < e->keep ? CAY_MIN(size, e->keep - e->head.size) : 0;
    if (n)
        buf_add(&e->head, data, n);
    data += n;
    size -= n;
    /* The tail grows to twice its size before it is moved: each byte is moved once. */
    while (size) {
        n = CAY_MIN(size, e->keep);
        if (e->tail.size + n > e->tail.max)
            buf_eat(&e->tail, e->tail.size - e->keep);
        buf_add(&e->tail, data, n);
        data += n;
        size -= n;
    }
}

/* A character begins at every byte that does not continue one. */
static bool begins(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static size_t count_chars(const char *text, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++)
        n += begins(text[i]);
    return n;
}

/* Where character number `n` begins; the size if there are not so many. */
static size_t find_char(const char *text, size_t size, size_t n)
{
    for (size_t i = 0; i < size; i++)
        if (begins(text[i]) && n-- == 0)
            return i;
    return size;
}

/* How many bytes at the end are the beginning of a character. */
static size_t unfinished(const char *text, size_t size)
{
    for (size_t back = 1; back <= CAY_MIN(size, (size_t)3); back++) {
        unsigned char c = (unsigned char)text[size - back];
        if (!begins((char)c))
            continue;
        size_t length = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        return back < length ? back : 0;
    }
    return 0;
}

size_t excerpt_unfinished(const struct excerpt *e)
{
    /* The end may lie across both parts. */
    char last[3];
    size_t right = CAY_MIN(e->tail.size, sizeof(last));
    size_t left = CAY_MIN(e->head.size, sizeof(last) - right);
    if (left)
        memcpy(last, e->head.data + e->head.size - left, left);
    if (right)
        memcpy(last + left, e->tail.data + e->tail.size - right, right);
    return unfinished(last, left + right);
}

void excerpt_hold(struct excerpt *e)
{
    size_t n = excerpt_unfinished(e), right = CAY_MIN(n, e->tail.size);
    e->tail.size -= right;
    e->head.size -= n - right;
    e->total -= n;
    e->next -= n;
}

static void add_cut(struct cay_buf *out, uint64_t missing)
{
    buf_fmt(out, "\n[... %llu bytes left out ...]\n", (unsigned long long)missing);
}

void excerpt_put(struct excerpt *e, uint64_t at, const char *data, size_t size)
{
    uint64_t skip = e->next > at ? e->next - at : 0;
    if (skip >= size)
        return;
    excerpt_stop(e, at + skip);
    excerpt_add(e, data + skip, size - (size_t)skip);
    e->next = at + size;
}

void excerpt_stop(struct excerpt *e, uint64_t at)
{
    autobuf struct cay_buf line = CAY_BUF(128);
    if (at > e->next) {
        add_cut(&line, at - e->next);
        excerpt_add(e, line.data, line.size);
    }
    e->next = at;
}

void excerpt_text(struct excerpt *e, size_t max_chars, struct cay_buf *out)
{
    bool dropped = e->total > 2 * e->keep;
    size_t half = max_chars / 2;
    if (dropped && e->tail.size > e->keep)
        buf_eat(&e->tail, e->tail.size - e->keep);
    if (!dropped && e->tail.size) {
        buf_add(&e->head, e->tail.data, e->tail.size);
        e->tail.size = 0;
    }
    const char *text = e->head.data ? e->head.data : "", *rest = e->tail.data ? e->tail.data : "";
    size_t size = e->head.size, left = e->tail.size;
    if (!dropped && (!max_chars || count_chars(text, size) <= max_chars)) {
        buf_add(out, text, size);
        return;
    }
    if (!dropped) {
        rest = text;
        left = size;
    }
    size_t chars = count_chars(rest, left);
    size_t from = find_char(rest, left, max_chars && chars > half ? chars - half : 0);
    size_t head = max_chars ? find_char(text, size, half) : utf8_valid(text, size);
    /* Bytes that are no text at all have no characters to cut between. */
    if (!max_chars && size - head > 3)
        head = size;
    buf_add(out, text, head);
    add_cut(out, e->total - head - (left - from));
    buf_add(out, rest + from, left - from);
}

/* ---- lines ----------------------------------------------------------------------------------- */

bool lines_add(struct lines *lines, const char *data, size_t size, struct cay_buf *out)
{
    const char *end = data + size;
    while (data < end && lines->at < lines->end) {
        const char *newline = memchr(data, '\n', (size_t)(end - data));
        const char *stop = newline ? newline : end;
        if (lines->at >= lines->first) {
            if (lines->newline)
                buf_str(out, "\n");
            buf_add(out, data, (size_t)(stop - data));
            lines->newline = newline != NULL;
        }
        lines->at += newline != NULL;
        data = newline ? newline + 1 : end;
    }
    return lines->at < lines->end;
}

/* ---- strings --------------------------------------------------------------------------------- */

static void add_middle(const char *text, size_t size, struct cay_buf *out)
{
    size_t before = out->size;
    if (buf_json_n(out, text, size) < 0)
        return;
    memmove(out->data + before, out->data + before + 1, out->size - before - 2);
    out->size -= 2;
}

void pieces_add(struct string_pieces *s, const char *data, size_t size, struct cay_buf *out)
{
    while (s->n && s->n < sizeof(s->carry) && size && !begins(*data)) {
        s->carry[s->n++] = *data++;
        size--;
    }
    if (size == 0)
        return;
    pieces_end(s, out);
    s->n = unfinished(data, size);
    memcpy(s->carry, data + size - s->n, s->n);
    if (size > s->n)
        add_middle(data, size - s->n, out);
}

void pieces_end(struct string_pieces *s, struct cay_buf *out)
{
    if (s->n)
        add_middle(s->carry, s->n, out);
    s->n = 0;
}
