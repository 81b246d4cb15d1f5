/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of the audit log. First as somebody else wrote them: any bytes, parsed, matched, turned
 * into events. Then as we write them: whatever a client chose for an entry, the line is sealed,
 * parses, and says the same.
 */
#include "audit/line.h"
#include "audit/store.h"
#include "base/util.h"
#include "fuzz.h"

#include <string.h>

static void foreign(const char *line, size_t size)
{
    char prev[AUDIT_HASH], hash[AUDIT_HASH];
    autobuf struct cay_buf out = CAY_BUF(1u << 22);
    autoline struct audit_line l = {0};
    struct cay_error err = {0};
    struct audit_head head;
    const struct audit_query query = {.since_ms = 1, .label = "team=red", .lifecycle_only = true};
    audit_line_sealed(line, size, prev, hash);
    if (audit_head_parse(line, size, &head))
        FUZZ_REQUIRE(strlen(head.hash) == AUDIT_HASH - 1);
    if (audit_line_parse(line, size, &l, &err) < 0) {
        FUZZ_REQUIRE(err.code != CAY_OK && err.text[0] && !l.root);
        FUZZ_REQUIRE(audit_event(line, size, NULL, &out) == 0);
        return;
    }
    FUZZ_REQUIRE(l.seq && l.who && l.action && l.result && l.labels && l.detail);
    if (audit_line_matches(&l, &query))
        FUZZ_REQUIRE(audit_line_event(&l) && l.time_ms);
    if (audit_event(line, size, "acme", &out))
        FUZZ_REQUIRE(!memchr(out.data, '\n', out.size));
}

/* Words between newlines become the members of an entry. */
static void own(char *text)
{
    char *words[12] = {0}, *save = NULL, hash[AUDIT_HASH], prev[AUDIT_HASH], again[AUDIT_HASH];
    size_t n = 0;
    for (char *word = strtok_r(text, "\n", &save); word && n < CAY_COUNT(words) - 1;
         word = strtok_r(NULL, "\n", &save))
        words[n++] = word;
    const char *const *list = (const char *const *)words;
    const struct audit_entry entry = {
        .who = words[0],
        .tenant = words[1],
        .action = (enum audit_action)(n % (AUDIT_PRUNED + 1)),
        .sandbox = words[2],
        .labels = list,
        .detail = {.argv = list, .env = list, .path = words[3], .rule = words[4]}};
    const struct audit_stamp stamp = {
        .seq = n + 1, .wall_us = n * 1000003, .boot = words[5], .prev = AUDIT_NO_HASH};
    autobuf struct cay_buf out = CAY_BUF(AUDIT_MAX_LINE);
    autoline struct audit_line l = {0};
    FUZZ_REQUIRE(audit_line_make(&out, &entry, &stamp, hash) == 0);
    FUZZ_REQUIRE(!memchr(out.data, '\n', out.size) && !memchr(out.data, 0, out.size));
    FUZZ_REQUIRE(audit_line_sealed(out.data, out.size, prev, again) && strcmp(hash, again) == 0);
    FUZZ_REQUIRE(audit_line_parse(out.data, out.size, &l, NULL) == 0 && l.seq == n + 1);
    FUZZ_REQUIRE(!l.tenant == !words[1] && !l.sandbox == !words[2]);
    out.data[out.size / 2] ^= 1;
    FUZZ_REQUIRE(!audit_line_sealed(out.data, out.size, prev, again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > AUDIT_MAX_LINE)
        return 0;
    foreign((const char *)data, size);
    char *text = strndup((const char *)data, size);
    if (!text)
        return 0;
    uint64_t ms;
    audit_time_parse(text, &ms, NULL);
    own(text);
    free(text);
    return 0;
}
