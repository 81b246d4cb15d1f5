/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text on its way into answers: its two ends when it is too long, a range of its lines, and JSON
 * strings that are written piece by piece. Pure; memory is bounded by what is asked for.
 */
#ifndef CAY_DAEMON_FRONTS_TEXT_H
#define CAY_DAEMON_FRONTS_TEXT_H

#include "base/buf.h"

/* ---- the beginning and the end of something that may be long --------------------------------- */

struct excerpt {
    size_t keep; /* bytes of either end */
    struct cay_buf head, tail;
    uint64_t total; /* bytes that came, with lines for those that are missing */
    uint64_t next;  /* place of the byte that comes next in the stream that this is from */
};

void excerpt_init(struct excerpt *e, size_t keep);
void excerpt_done(struct excerpt *e);
void excerpt_add(struct excerpt *e, const char *data, size_t size);
/* Adds bytes by their place in the stream: not those before `next`, and a line for missing ones. */
void excerpt_put(struct excerpt *e, uint64_t at, const char *data, size_t size);
/* The stream is this long: a line for what is missing at its end. */
void excerpt_stop(struct excerpt *e, uint64_t at);
/* How many bytes at the end are the beginning of a character whose end may follow. */
size_t excerpt_unfinished(const struct excerpt *e);
/* Takes these away; `next` is where they begin. */
void excerpt_hold(struct excerpt *e);
/*
 * All of it; or, of more than max_chars characters (0: any number), or of more bytes than were
 * kept, the two ends with a line between them that says how many bytes are missing. A character is
 * what UTF-8 says; the cut is between two of them. The excerpt is used up.
 */
void excerpt_text(struct excerpt *e, size_t max_chars, struct cay_buf *out);

/* ---- some lines of a file -------------------------------------------------------------------- */

/* Lines `first` up to but without `end`, counted from 0, joined by newlines: none after the last.
 */
struct lines {
    uint64_t first, end, at;
    bool newline; /* one is owed, if another line follows */
};

/* Appends what is wanted of the next piece; false when nothing more will be. */
bool lines_add(struct lines *lines, const char *data, size_t size, struct cay_buf *out);

/* ---- a JSON string in pieces ----------------------------------------------------------------- */

struct string_pieces {
    char carry[4]; /* the beginning of a character whose end has not come */
    size_t n;
};

/* The piece as the middle of a string, without quotes. What is no UTF-8 becomes U+FFFD. */
void pieces_add(struct string_pieces *s, const char *data, size_t size, struct cay_buf *out);
void pieces_end(struct string_pieces *s, struct cay_buf *out);

#endif
