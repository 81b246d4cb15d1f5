/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator policy: what callers of the daemon may ask for. A document becomes rules, rules and
 * a spec become a verdict. docs/POLICY.md is the operator's view of it.
 *
 *   - [policy] is for everybody, [tenant NAME] replaces single values of it for one tenant. What
 *     neither says comes from the built-in rules: no mounts and only the image "host" for tenants,
 *     everything for the operator.
 *   - Every rule has a stable name that a refusal carries: "policy.images", "tenant
 * acme.memory_max", "builtin.mounts".
 *   - No I/O: host paths are resolved by the caller (daemon/resolve.h) and judged here by what they
 *     resolve to, component by component.
 *   - A policy never changes once it is parsed; a new document is a new policy.
 *
 * Called by the daemon.
 */
#ifndef CAY_POLICY_OPERATOR_H
#define CAY_POLICY_OPERATOR_H

#include "base/limits.h"

#include <cay/cay.h>

#define OPERATOR_POLICY_PATH "/etc/cay/policy.conf"
#define OPERATOR_MAX_TENANTS 1024
/* A value of a quota that is not set. */
#define OPERATOR_NO_LIMIT UINT64_MAX

struct operator_policy;

/* [a-z0-9][a-z0-9-]{0,23}, and not "pool", which is the engine's own. */
bool operator_tenant_ok(const char *name);

/* `name` stands in errors ("NAME:LINE: ..."). An empty text is a policy: the built-in rules. */
int operator_parse(const char *name, const char *text, size_t size, struct operator_policy **out,
                   struct cay_error *err);
void operator_free(struct operator_policy *policy);

/* What the host paths of a spec resolve to. Zeroed: the spec names none. Borrowed. */
struct operator_resolved {
    const char *image;          /* of "dir:PATH"; NULL: no such image, or PATH cannot be resolved */
    const char *const *sources; /* parallel to spec->mounts; an entry is NULL if it cannot be */
};

struct operator_refusal {
    char rule[96];     /* "policy.images"; "" if no rule was the reason */
    const char *field; /* static: the spec's field at fault, "memory"; NULL: none */
};

/*
 * Judges a spec, with `tenant` "" for the operator. On success the spec's unset fields are filled
 * in where a rule says so (strings borrow from the policy). -1: CAY_E_DENIED (image, profile,
 * mounts) or CAY_E_LIMIT (a ceiling), the rule's name in the text and in `why`. A path that cannot
 * be resolved is refused like one outside, so that a tenant cannot ask what there is on the host.
 *
 * After success the caller puts the resolved paths in place of those that were asked for
 * (resolve_apply) and the one who opens them allows no symbolic link any more: what was judged is
 * then what is opened, whatever happens to the path meanwhile.
 */
int operator_check(const struct operator_policy *policy, const char *tenant, struct cay_spec *spec,
                   const struct operator_resolved *resolved, struct operator_refusal *why,
                   struct cay_error *err);
/* The same for a change of ttl and idle; here 0 was asked for and means "never". */
int operator_check_lifetime(const struct operator_policy *policy, const char *tenant,
                            const struct cay_lifetime *lifetime, struct operator_refusal *why,
                            struct cay_error *err);

/* What one tenant may have at once. OPERATOR_NO_LIMIT: no limit; 0: none at all. */
struct operator_quota {
    uint64_t sandboxes_max; /* live ones */
    uint64_t ended_max;     /* ended ones that were not removed; never 0 */
    uint64_t memory_total;  /* bytes, sum of the specs of live sandboxes */
    uint64_t cpus_total;    /* thousandths, the same */
    uint64_t disk_total;    /* bytes, the same */
    uint64_t execs_max;     /* processes running by way of the API */
    uint64_t requests_max;  /* requests in flight, streams among them */
    uint64_t create_rate;   /* creates per minute */
};

/* Never NULL; borrowed from the policy. operator_check has set memory, cpus and disk of every spec
 * that counts against a total. */
const struct operator_quota *operator_quota(const struct operator_policy *policy,
                                            const char *tenant);
/*
 * Refuses (CAY_E_LIMIT) what would take one quota beyond its limit: `used` + `more` > limit. `key`
 * is the quota's name, "sandboxes_max". Keeps the wording and the rule's name in one place.
 */
int operator_check_quota(const struct operator_policy *policy, const char *tenant, const char *key,
                         uint64_t used, uint64_t more, struct operator_refusal *why,
                         struct cay_error *err);

/* Every host path that rules name (prefixes of mounts), for a check against the file system; a
 * non-zero return of `each` ends the walk and is returned. */
int operator_each_path(const struct operator_policy *policy,
                       int (*each)(const char *path, const char *rule, void *data), void *data);

#endif
