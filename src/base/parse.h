/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pure parsers of what people write: sizes, durations, ids, mounts. No I/O, no allocation, no
 * locale. Each takes the whole text or refuses it with an error that names what was given and what
 * was expected, and writes its output only on success. Used by the option tables (opt.h), the
 * library and the programs.
 */
#ifndef CAY_BASE_PARSE_H
#define CAY_BASE_PARSE_H

#include <cay/cay.h>

/* "1024", "512M", "2G", "1.5GiB": bytes; units are powers of 1024 and any case. */
int parse_size(const char *text, uint64_t *out, struct cay_error *err);
/* "15m", "1h30m", "250ms", "1.5", "10": milliseconds; a bare number is seconds. Never
 * rounds to 0. */
int parse_duration(const char *text, uint64_t *ms, struct cay_error *err);
/* A whole number in decimal. */
int parse_count(const char *text, uint64_t *out, struct cay_error *err);
/* The key of a start: 1 to 64 of [A-Za-z0-9._-]. */
int parse_key(const char *text, struct cay_error *err);
/* "1", "0.5", "1.25": thousandths of a CPU. */
int parse_cpus(const char *text, uint64_t *thousandths, struct cay_error *err);
/* A process number: 1 to INT32_MAX. */
int parse_pid(const char *text, pid_t *out, struct cay_error *err);
/* "TERM", "SIGTERM", "term" or "15". */
int parse_signal(const char *text, int *out, struct cay_error *err);
/* "755" or "0755": permission bits in octal. */
int parse_mode(const char *text, uint32_t *out, struct cay_error *err);
/* [a-z0-9][a-z0-9._-]{0,62}, perhaps after a tenant's name, [a-z0-9][a-z0-9-]{0,23}, and '~'. `out`
 * borrows the text. */
int parse_id(const char *text, const char **out, struct cay_error *err);
/* The part of a good id that is not the tenant's name. Borrowed. */
const char *parse_id_name(const char *id);
/* Of the tenant that stands for nobody: the engine's own prepared sandboxes. */
#define PARSE_POOL "pool~"
bool parse_id_reserved(const char *id);
int parse_profile(const char *text, enum cay_profile *out, struct cay_error *err);
const char *parse_profile_name(enum cay_profile profile);

/* A part of the text that was given; borrowed. */
struct parse_span {
    const char *data;
    size_t size;
};

/* A name that can stand in an environment: printable, no blank, no '='. */
int parse_env_name(const char *text, const char **out, struct cay_error *err);
/* "NAME=VALUE" of an environment, cut in two. The value may be empty. */
int parse_env(const char *text, struct parse_span *name, const char **value, struct cay_error *err);
/* "KEY=VALUE" of a label: the key of [A-Za-z0-9._/-], the value printable, both within
 * CAY_MAX_LABEL. */
int parse_label(const char *text, struct parse_span *key, const char **value,
                struct cay_error *err);

struct parse_mount {
    struct parse_span source, target;
    bool read_only;
};

/* "HOST:DEST", "HOST:DEST:ro" or "HOST:DEST:rw"; DEST is absolute and has no "..". */
int parse_mount(const char *text, struct parse_mount *out, struct cay_error *err);

#endif
