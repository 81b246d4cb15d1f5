/* SPDX-License-Identifier: Apache-2.0 */
/* --verify: the findings, and at the end one line that says whether the log is whole. */
#include "auditor/auditor.h"

#include "base/util.h"

#include <stdio.h>

/* A log that is rubbish from end to end need not be shown line by line. */
#define MAX_FINDINGS 100

struct shown {
    struct auditor *auditor;
    uint64_t faults, notes;
    char first[512];
};

static void show_finding(const struct audit_finding *f, void *data)
{
    struct shown *shown = data;
    struct cay_buf *out = &shown->auditor->out;
    char place[160], seq[32] = "";
    uint64_t *count = f->fault == AUDIT_NOTE ? &shown->notes : &shown->faults;
    if ((*count)++ >= MAX_FINDINGS)
        return;
    if (f->line)
        snprintf(place, sizeof(place), "%s:%llu", f->file, (unsigned long long)f->line);
    else
        snprintf(place, sizeof(place), "%s", f->file);
    if (f->seq)
        snprintf(seq, sizeof(seq), " (seq %llu)", (unsigned long long)f->seq);
    if (f->fault != AUDIT_NOTE && shown->faults == 1)
        snprintf(shown->first, sizeof(shown->first), "%s%s: %s", place, seq, f->text);
    if (shown->auditor->json) {
        buf_fmt(out, "{\"fault\":\"%s\",\"file\":", audit_fault_name(f->fault));
        buf_json(out, f->file);
        buf_fmt(out, ",\"line\":%llu,\"seq\":%llu,\"message\":", (unsigned long long)f->line,
                (unsigned long long)f->seq);
        buf_json(out, f->text);
        buf_str(out, "}\n");
    } else {
        buf_fmt(out, "%s: %s%s: %s\n", audit_fault_name(f->fault), place, seq, f->text);
    }
}

int auditor_verify(struct auditor *auditor)
{
    struct shown shown = {.auditor = auditor};
    struct audit_summary sum;
    struct cay_buf *out = &auditor->out;
    if (audit_verify(auditor->dir, show_finding, &shown, &sum, &auditor->err) < 0)
        return -1;
    const unsigned long long n = sum.entries, first = sum.first_seq, last = sum.last_seq;
    if (auditor->json) {
        buf_fmt(out,
                "{\"ok\":%s,\"entries\":%llu,\"first_seq\":%llu,\"last_seq\":%llu,\"faults\":%llu,"
                "\"hash\":\"%s\"}\n",
                sum.faults ? "false" : "true", n, first, last, (unsigned long long)sum.faults,
                sum.hash);
    } else if (sum.faults) {
        buf_fmt(out, "broken: %llu faults in %llu entries; the first: %s\n",
                (unsigned long long)sum.faults, n, shown.first);
    } else {
        buf_fmt(out, "ok: %llu entries, seq %llu to %llu, hash %s\n", n, first, last, sum.hash);
    }
    if (auditor_flush(auditor) < 0)
        return -1;
    return sum.faults ? AUDITOR_EXIT_BROKEN : 0;
}
