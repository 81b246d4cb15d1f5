/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the whole log and says what is wrong with it. After a fault the walk goes on with what it
 * found, so that one change is one finding.
 *
 * Head is read first: a daemon that goes on writing meanwhile only adds behind it.
 */
#include "audit/store.h"

#include "base/err.h"
#include "base/util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *audit_fault_name(enum audit_fault fault)
{
    static const char *const names[] = {
        [AUDIT_NOTE] = "note",       [AUDIT_FAULT_CHANGED] = "changed", [AUDIT_FAULT_LINK] = "link",
        [AUDIT_FAULT_GAP] = "gap",   [AUDIT_FAULT_ORDER] = "order",     [AUDIT_FAULT_FILE] = "file",
        [AUDIT_FAULT_HEAD] = "head",
    };
    return (size_t)fault < CAY_COUNT(names) ? names[fault] : "unknown";
}

struct walk {
    audit_report *report;
    void *data;
    struct audit_summary sum;
    struct audit_head head;
    bool has_head, met_head;
    /* the line before: */
    bool known; /* false: the first one, or the one before was not readable */
    uint64_t seq;
    char hash[AUDIT_HASH];
    uint64_t pruned; /* an entry says that those up to here were removed */
    uint64_t gap;    /* the entry before which others are missing was told */
    /* where we are: */
    const char *file;
    uint64_t number, line; /* of the file, by its name: 0: the current one */
};

static void found(struct walk *w, enum audit_fault fault, uint64_t seq, const char *fmt, ...)
    CAY_PRINTF(4, 5);
static void found(struct walk *w, enum audit_fault fault, uint64_t seq, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    w->sum.faults += fault != AUDIT_NOTE;
    const struct audit_finding finding = {
        .fault = fault, .file = w->file, .line = w->line, .seq = seq, .text = text};
    w->report(&finding, w->data);
}

#define N(number) ((unsigned long long)(number))

/* Where the line stands among the others. True if its prev is worth a look. */
static bool check_place(struct walk *w, uint64_t seq)
{
    bool first = w->sum.entries == 0;
    if (w->line == 1 && w->number && seq != w->number) {
        found(w, AUDIT_FAULT_FILE, seq, "the file starts with seq %llu, its name says %llu", N(seq),
              N(w->number));
        return false;
    }
    if (first && w->sum.faults == 0)
        return seq == 1;
    if (!w->known || seq == w->seq + 1)
        return w->known;
    w->gap = seq;
    if (seq > w->seq)
        found(w, AUDIT_FAULT_GAP, seq, "entries %llu to %llu are missing", N(w->seq + 1),
              N(seq - 1));
    else
        found(w, AUDIT_FAULT_ORDER, seq, "seq %llu stands after %llu", N(seq), N(w->seq));
    return false;
}

/* What the log says about itself. */
static void read_note(struct walk *w, const struct audit_line *line)
{
    uint64_t from = 0, to = 0;
    const char *reason = audit_line_text(line, "reason");
    bool range =
        audit_line_number(line, "from_seq", &from) && audit_line_number(line, "to_seq", &to);
    if (strcmp(line->action, audit_action_name(AUDIT_PRUNED)) == 0 && range)
        w->pruned = CAY_MAX(w->pruned, to);
    if (strcmp(line->action, audit_action_name(AUDIT_RECOVERED)) != 0)
        return;
    if (!range)
        found(w, AUDIT_NOTE, line->seq, "recovered by the engine: %s", reason ? reason : "?");
    else if (w->gap == line->seq)
        found(w, AUDIT_NOTE, line->seq, "recovered by the engine: %s, entries %llu to %llu",
              reason ? reason : "?", N(from), N(to));
    else /* nothing before it is left to show the gap */
        found(w, AUDIT_FAULT_GAP, line->seq,
              "entries %llu to %llu, %llu of them, were lost, and the engine went on: %s", N(from),
              N(to), N(to - from + 1), reason ? reason : "?");
}

static void check_line(struct walk *w, const struct audit_raw *raw)
{
    char prev[AUDIT_HASH], hash[AUDIT_HASH];
    struct cay_error err;
    autoline struct audit_line line = {0};
    w->line++;
    if (!audit_line_sealed(raw->data, raw->size, prev, hash)) {
        found(w, AUDIT_FAULT_CHANGED, w->known ? w->seq + 1 : 0,
              "the line was changed: its hash is not that of its bytes");
        w->known = false;
        return;
    }
    if (audit_line_parse(raw->data, raw->size, &line, &err) < 0) {
        found(w, AUDIT_FAULT_CHANGED, w->known ? w->seq + 1 : 0, "the line is no entry: %s",
              err.text);
        w->known = false;
        return;
    }
    bool orphan = line.seq > 1 && strcmp(prev, AUDIT_NO_HASH) == 0;
    if ((check_place(w, line.seq) && strcmp(prev, w->hash) != 0) || orphan)
        found(w, AUDIT_FAULT_LINK, line.seq, "the line does not follow the one before it");
    if (w->has_head && line.seq == w->head.seq) {
        w->met_head = true;
        if (strcmp(hash, w->head.hash) != 0)
            found(w, AUDIT_FAULT_HEAD, line.seq, "the line is not the one that head names");
    }
    read_note(w, &line);
    if (w->sum.entries++ == 0)
        w->sum.first_seq = line.seq;
    w->sum.last_seq = w->seq = line.seq;
    memcpy(w->hash, hash, sizeof(hash));
    w->known = true;
}

/* A writer that is alive may be in the middle of a line: give it a moment. */
static int read_patiently(struct audit_reader *reader, struct audit_raw *raw, bool last_file)
{
    int got = audit_reader_next(reader, raw);
    for (int i = 0; i < 5 && got == 0 && last_file && audit_reader_rest(reader); i++) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        got = audit_reader_next(reader, raw);
    }
    return got;
}

static void walk_lines(struct walk *w, int fd, bool current)
{
    autoreader struct audit_reader reader;
    struct audit_raw raw;
    int got;
    audit_reader_init(&reader, fd, 0);
    while ((got = read_patiently(&reader, &raw, current)) == 1)
        check_line(w, &raw);
    if (got < 0) {
        found(w, AUDIT_FAULT_FILE, 0, "cannot read it: %s", strerror(errno));
    } else if (audit_reader_rest(&reader)) {
        w->line++;
        found(w, AUDIT_FAULT_CHANGED, 0,
              "the last line has no end: the daemon did not finish it, or it was changed");
    } else if (w->line == 0 && !current) {
        found(w, AUDIT_FAULT_FILE, 0, "a rotated file without entries");
    }
}

static void walk_file(struct walk *w, const struct audit_store *store, size_t i)
{
    char name[AUDIT_NAME] = AUDIT_CURRENT;
    bool current = store->current >= 0 && i + 1 == store->n;
    w->number = current ? 0 : audit_store_first(store, i);
    if (!current)
        audit_store_name(w->number, name);
    w->file = name;
    w->line = 0;
    autofd int fd = audit_store_file(store, i);
    if (fd >= 0) {
        walk_lines(w, fd, current);
    } else if (errno != ENOENT) {
        found(w, AUDIT_FAULT_FILE, 0, "cannot open it: %s",
              errno == EINVAL ? "it is not a file" : strerror(errno));
    } else if (w->sum.entries) {
        /* Older ones are gone as well: what is left starts behind it. */
        found(w, AUDIT_NOTE, 0, "it was pruned while the log was read");
        w->sum.entries = 0;
        w->known = false;
    }
    w->file = AUDIT_HEAD;
    w->line = 0;
}

static void check_head(struct walk *w, int state)
{
    w->file = AUDIT_HEAD;
    if (state < 0)
        found(w, AUDIT_FAULT_HEAD, 0, "it is damaged or cannot be read");
    else if (state == 0)
        found(w, AUDIT_FAULT_HEAD, 0, "it is missing");
    else if (w->head.seq > w->sum.last_seq)
        found(w, AUDIT_FAULT_HEAD, w->head.seq,
              "the log ends at seq %llu, but went on to %llu: its end was cut off",
              N(w->sum.last_seq), N(w->head.seq));
    else if (w->head.seq && !w->met_head && w->head.seq >= w->sum.first_seq)
        found(w, AUDIT_FAULT_HEAD, w->head.seq, "entry %llu, which it names, is not there",
              N(w->head.seq));
    else if (w->head.seq == 0 && strcmp(w->head.hash, AUDIT_NO_HASH) != 0)
        found(w, AUDIT_FAULT_HEAD, 0, "it is damaged");
}

static void check_begin(struct walk *w)
{
    uint64_t missing = w->sum.first_seq ? w->sum.first_seq - 1 : 0;
    w->file = AUDIT_CURRENT;
    w->line = 0;
    if (missing && w->pruned < missing)
        found(w, AUDIT_NOTE, w->sum.first_seq,
              "entries 1 to %llu are not here, and no entry says that the engine removed them",
              N(missing));
}

int audit_verify(const char *dir, audit_report *report, void *data, struct audit_summary *out,
                 struct cay_error *err)
{
    struct walk w = {.report = report, .data = data, .hash = AUDIT_NO_HASH, .file = AUDIT_HEAD};
    autofd int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cay_fail_errno(err, errno, "no audit log in %s", dir);
    int state = audit_head_read(fd, &w.head);
    autostore struct audit_store store;
    if (audit_store_open(dir, &store, err) < 0)
        return -1;
    w.has_head = state == 1;
    if (store.n == 0 && state == 0)
        return cay_fail(err, CAY_E_NOT_FOUND, "no audit log in %s", dir);
    for (size_t i = 0; i < store.n; i++)
        walk_file(&w, &store, i);
    check_head(&w, state);
    check_begin(&w);
    memcpy(w.sum.hash, w.hash, sizeof(w.hash));
    *out = w.sum;
    return 0;
}
