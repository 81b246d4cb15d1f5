/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of the operator policy as they are kept: one table of names and kinds, and for each set of
 * rules one value per name with where it came from. Private to src/policy: operator.c makes them
 * from a document, judge.c applies them.
 */
#ifndef CAY_POLICY_RULES_H
#define CAY_POLICY_RULES_H

#include "base/opt.h"
#include "policy/operator.h"

enum rule_kind {
    RULE_IMAGE_LIST,   /* references or patterns */
    RULE_PROFILE_LIST, /* names that parse_profile knows */
    RULE_PATH_LIST,    /* absolute, normalized */
    RULE_SIZE,         /* this and the following are numbers */
    RULE_CPUS,
    RULE_COUNT,
    RULE_TIME,
};

/* Name, kind, and whether 0 is a value of its own ("none at all") or a mistake. The rules of a
 * field come as MAX, DEFAULT (judge.c). */
#define RULE_TABLE(X)                           \
    X(IMAGES, images, IMAGE_LIST, 0)            \
    X(PROFILES, profiles, PROFILE_LIST, 0)      \
    X(MOUNTS, mounts, PATH_LIST, 0)             \
    X(MOUNTS_RW, mounts_rw, PATH_LIST, 0)       \
    X(MEMORY_MAX, memory_max, SIZE, 0)          \
    X(MEMORY_DEFAULT, memory_default, SIZE, 0)  \
    X(CPUS_MAX, cpus_max, CPUS, 0)              \
    X(CPUS_DEFAULT, cpus_default, CPUS, 0)      \
    X(PIDS_MAX, pids_max, COUNT, 0)             \
    X(PIDS_DEFAULT, pids_default, COUNT, 0)     \
    X(DISK_MAX, disk_max, SIZE, 0)              \
    X(DISK_DEFAULT, disk_default, SIZE, 0)      \
    X(INODES_MAX, inodes_max, COUNT, 0)         \
    X(INODES_DEFAULT, inodes_default, COUNT, 0) \
    X(FDS_MAX, fds_max, COUNT, 0)               \
    X(FDS_DEFAULT, fds_default, COUNT, 0)       \
    X(OUTPUT_MAX, output_max, SIZE, 0)          \
    X(OUTPUT_DEFAULT, output_default, SIZE, 0)  \
    X(TTL_MAX, ttl_max, TIME, 0)                \
    X(TTL_DEFAULT, ttl_default, TIME, 0)        \
    X(IDLE_MAX, idle_max, TIME, 0)              \
    X(IDLE_DEFAULT, idle_default, TIME, 0)      \
    X(SANDBOXES_MAX, sandboxes_max, COUNT, 1)   \
    X(ENDED_MAX, ended_max, COUNT, 0)           \
    X(MEMORY_TOTAL, memory_total, SIZE, 0)      \
    X(CPUS_TOTAL, cpus_total, CPUS, 0)          \
    X(DISK_TOTAL, disk_total, SIZE, 0)          \
    X(EXECS_MAX, execs_max, COUNT, 1)           \
    X(REQUESTS_MAX, requests_max, COUNT, 0)     \
    X(CREATE_RATE, create_rate, COUNT, 0)

enum rule {
#define RULE_X(id, name, kind, zero) RULE_##id,
    RULE_TABLE(RULE_X)
#undef RULE_X
        N_RULES
};

struct rule_info {
    const char *name;
    enum rule_kind kind;
    bool zero;
};

extern const struct rule_info rule_table[N_RULES];

enum rule_origin { RULE_UNSET = 0, RULE_BUILTIN, RULE_POLICY, RULE_TENANT };

struct rule_value {
    enum rule_origin origin;
    uint64_t number;         /* OPERATOR_NO_LIMIT: "none" */
    const char *const *list; /* NULL: nothing is allowed */
};

struct rule_set {
    const char *tenant; /* of [tenant NAME]; NULL else */
    struct rule_value values[N_RULES];
    struct operator_quota quota;
};

struct operator_policy {
    struct opt_arena arena;
    bool operator_exempt;
    /* Each is complete: inherited and built-in values are copied in. */
    struct rule_set own;      /* the operator; nothing is set if exempt */
    struct rule_set others;   /* tenants without a section */
    struct rule_set *tenants; /* the arena's */
    size_t n_tenants;
};

const struct rule_set *rules_of(const struct operator_policy *policy, const char *tenant);

/* The rule's limit; OPERATOR_NO_LIMIT if it is unset or "none". */
static inline uint64_t rule_limit(const struct rule_set *set, enum rule rule)
{
    const struct rule_value *value = &set->values[rule];
    return value->origin == RULE_UNSET ? OPERATOR_NO_LIMIT : value->number;
}

/* "policy.images" */
void rule_print_name(const struct rule_set *set, enum rule rule, char *out, size_t size);
/* "4G", "1.5", "1h30m" as a person would write it. */
void rule_print_number(enum rule_kind kind, uint64_t number, char out[32]);

#endif
