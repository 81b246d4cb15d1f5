/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operator policies: a document, and behind a NUL what a tenant asks for, one word in a line:
 * tenant, image, what it resolves to, mount, what it resolves to, memory.
 */
#include "fuzz.h"
#include "policy/operator.h"

#include <stdlib.h>
#include <string.h>

#define WORDS 6

static void require_refusal(const struct operator_refusal *why, const struct cay_error *err)
{
    FUZZ_REQUIRE(err->code == CAY_E_DENIED || err->code == CAY_E_LIMIT);
    FUZZ_REQUIRE(why->rule[0] && strstr(err->text, why->rule) && !strchr(err->text, '\n'));
}

static void judge(const struct operator_policy *policy, char *request)
{
    const char *words[WORDS] = {"", "", "", "", "", ""};
    char *save = NULL;
    for (size_t i = 0; i < WORDS; i++) {
        char *word = strtok_r(i ? NULL : request, "\n", &save);
        if (word)
            words[i] = word;
    }
    struct cay_mount mounts[] = {{words[3], "/x", true}, {words[3], "/y", strlen(words[3]) % 2}};
    const char *sources[] = {*words[4] ? words[4] : NULL, *words[4] ? words[4] : NULL};
    const struct operator_resolved resolved = {*words[2] ? words[2] : NULL, sources};
    struct cay_spec spec = {.image = words[1],
                            .memory = strtoull(words[5], NULL, 0),
                            .mounts = mounts,
                            .n_mounts = *words[3] ? 2 : 0};
    struct operator_refusal why;
    struct cay_error err = {0};
    const struct operator_quota *quota = operator_quota(policy, words[0]);
    FUZZ_REQUIRE(quota);
    if (operator_check(policy, words[0], &spec, &resolved, &why, &err) < 0) {
        require_refusal(&why, &err);
        return;
    }
    /* What was filled in is within the rules, and nothing is left to fill in. */
    struct cay_spec again = spec;
    FUZZ_REQUIRE(operator_check(policy, words[0], &again, &resolved, &why, &err) == 0);
    FUZZ_REQUIRE(memcmp(&again, &spec, sizeof(spec)) == 0);
    if (quota->memory_total != OPERATOR_NO_LIMIT)
        FUZZ_REQUIRE(spec.memory);
    if (quota->cpus_total != OPERATOR_NO_LIMIT)
        FUZZ_REQUIRE(spec.cpus);
    /* Steps upwards are never within anything, unless nothing is judged at all. */
    if (*words[0] && *words[3])
        FUZZ_REQUIRE(words[4][0] == '/' && !strstr(words[4], "/../"));
    if (operator_check_quota(policy, words[0], "memory_total", spec.memory, spec.memory, &why,
                             &err) < 0)
        require_refusal(&why, &err);
    struct cay_lifetime life = {true, true, spec.memory, spec.memory};
    if (operator_check_lifetime(policy, words[0], &life, &why, &err) < 0)
        require_refusal(&why, &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct operator_policy *policy = NULL;
    struct cay_error err = {0};
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    size_t n = strlen(text);
    if (operator_parse("fuzz", text, n, &policy, &err) < 0)
        FUZZ_REQUIRE(!policy && err.code != CAY_OK && err.text[0] && !strchr(err.text, '\n'));
    else if (n < size)
        judge(policy, text + n + 1);
    operator_free(policy);
    free(text);
    return 0;
}
