/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries as rows. The widths are fixed, since rows are written as they are found: a log may be
 * larger than memory, and --follow has no end. What a client chose never steers the terminal.
 */
#include "auditor/auditor.h"

#include "audit/line.h"
#include "base/err.h"
#include "base/table.h"
#include "base/util.h"

#include <jansson.h>
#include <string.h>

#define FLUSH_AT (64u << 10)
#define MAX_SUMMARY 200

int auditor_flush(struct auditor *auditor)
{
    int result = auditor->out.size && !auditor->failed
                     ? cay_write_all(STDOUT_FILENO, auditor->out.data, auditor->out.size)
                     : 0;
    auditor->out.size = 0;
    auditor->out.failed = false;
    if (result == 0)
        return auditor->failed ? -1 : 0;
    auditor->failed = true;
    return cay_fail_errno(&auditor->err, errno, "cannot write to standard output");
}

/* Control characters of one byte and, in UTF-8, of two. */
static void plain(char *text, size_t size)
{
    table_plain(text, size);
    for (size_t i = 0; i + 1 < size; i++)
        if ((unsigned char)text[i] == 0xc2 && (unsigned char)text[i + 1] < 0xa0)
            text[i] = text[i + 1] = '?';
}

/* A cell of at least `width` characters, and two blanks. */
static void add_cell(struct cay_buf *out, const char *text, size_t width)
{
    size_t start = out->size, used = 0;
    buf_str(out, text && *text ? text : "-");
    if (buf_failed(out))
        return;
    plain(out->data + start, out->size - start);
    for (size_t i = start; i < out->size; i++)
        used += ((unsigned char)out->data[i] & 0xc0) != 0x80;
    buf_fmt(out, "%*s", (int)(used < width ? width - used + 2 : 2), "");
}

/* ---- what was done, in a few words ----------------------------------------------------------- */

static void add_word(struct cay_buf *out, const char *before, const char *text)
{
    if (!text)
        return;
    if (out->size)
        buf_str(out, " ");
    buf_str(out, before);
    buf_str(out, text);
}

static void add_argv(struct cay_buf *out, const json_t *argv)
{
    size_t i;
    json_t *value;
    json_array_foreach(argv, i, value)
    {
        const char *text = json_string_value(value);
        bool odd = !text || !*text || strpbrk(text, " \t\n'\"\\$`");
        if (odd && out->size)
            buf_str(out, " ");
        if (odd)
            buf_json(out, text ? text : "");
        else
            add_word(out, "", text);
    }
}

static void add_summary(struct cay_buf *out, const struct audit_line *line)
{
    static const struct {
        const char *name, *before;
        bool number;
    } parts[] = {
        {"path", "", false},          {"to", "to ", false},        {"image", "image=", false},
        {"rule", "rule=", false},     {"state", "state=", false},  {"reason", "", false},
        {"bytes", "bytes=", true},    {"pid", "pid=", true},       {"signal", "signal=", true},
        {"exit_code", "exit=", true}, {"ttl_ms", "ttl_ms=", true}, {"idle_ms", "idle_ms=", true},
        {"from_seq", "from=", true},  {"to_seq", "to=", true}};
    add_argv(out, json_object_get(line->detail, "argv"));
    for (size_t i = 0; i < CAY_COUNT(parts); i++) {
        uint64_t value;
        char number[24];
        if (!parts[i].number)
            add_word(out, parts[i].before, audit_line_text(line, parts[i].name));
        else if (audit_line_number(line, parts[i].name, &value)) {
            snprintf(number, sizeof(number), "%llu", (unsigned long long)value);
            add_word(out, parts[i].before, number);
        }
    }
    if (json_is_true(json_object_get(line->detail, "existed")))
        add_word(out, "", "existed");
    if (json_is_true(json_object_get(line->detail, "truncated")))
        add_word(out, "", "...");
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void add_row(struct cay_buf *out, const char *const cells[5], const char *summary)
{
    static const size_t widths[5] = {20, 16, 9, 24, 9};
    for (size_t i = 0; i < CAY_COUNT(widths); i++)
        add_cell(out, cells[i], widths[i]);
    size_t start = out->size;
    buf_str(out, summary);
    if (buf_failed(out))
        return;
    plain(out->data + start, out->size - start);
    if (out->size - start > MAX_SUMMARY) {
        out->size = start + MAX_SUMMARY;
        while (((unsigned char)out->data[out->size] & 0xc0) == 0x80)
            out->size--;
        buf_str(out, "...");
    }
    while (out->size && out->data[out->size - 1] == ' ')
        out->size--;
    buf_str(out, "\n");
}

static void show_row(struct auditor *auditor, const struct audit_line *line)
{
    autobuf struct cay_buf summary = CAY_BUF(AUDIT_MAX_LINE), who = CAY_BUF(AUDIT_MAX_LINE);
    char time[24];
    if (!auditor->headed) {
        static const char *const header[5] = {"TIME", "WHO", "ACTION", "SANDBOX", "RESULT"};
        add_row(&auditor->out, header, "SUMMARY");
        auditor->headed = true;
    }
    /* Whole seconds are enough for people. */
    snprintf(time, sizeof(time), "%.19sZ", line->time);
    buf_str(&who, line->who);
    if (line->tenant)
        buf_fmt(&who, "@%s", line->tenant);
    add_summary(&summary, line);
    const char *const cells[5] = {time, buf_cstr(&who), line->action, line->sandbox, line->result};
    const char *text = buf_cstr(&summary);
    add_row(&auditor->out, cells, text ? text : "");
}

int auditor_show(const char *line, size_t size, void *data)
{
    struct auditor *auditor = data;
    autoline struct audit_line l = {0};
    if (audit_line_parse(line, size, &l, NULL) < 0)
        return 0;
    auditor->seq = l.seq;
    if (auditor->json) {
        buf_add(&auditor->out, line, size);
        buf_str(&auditor->out, "\n");
    } else
        show_row(auditor, &l);
    return auditor->out.size >= FLUSH_AT && auditor_flush(auditor) < 0;
}
