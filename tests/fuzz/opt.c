/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines (words between newlines) and config files, with the tables of a spec. */
#include "base/opt.h"
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

static void command_line(char *text)
{
    autoarena struct opt_arena arena = {0};
    struct cay_spec spec = {0};
    struct cay_error err = {0};
    struct opt_args args;
    char *argv[130], *save = NULL;
    size_t n = 0;
    for (char *word = strtok_r(text, "\n", &save); word && n < 128;
         word = strtok_r(NULL, "\n", &save))
        argv[n++] = word;
    argv[n] = NULL;
    const struct opt_group groups[] = {{opt_spec, opt_spec_count, &spec}, {0}};
    if (opt_parse(&arena, groups, argv, 1, &args, &err) < 0)
        FUZZ_REQUIRE(err.code != CAY_OK && err.text[0] && !strchr(err.text, '\n'));
    else
        FUZZ_REQUIRE(args.n <= n && !args.operands[args.n]);
}

static int any_pair(const char *key, const char *value, void *data, struct cay_error *err)
{
    (void)data;
    (void)err;
    FUZZ_REQUIRE(*key && *value);
    return 0;
}

static void config_file(const char *text, size_t size)
{
    autoarena struct opt_arena arena = {0};
    struct cay_spec spec = {0};
    struct cay_error err = {0};
    const struct opt_section sections[] = {
        {.name = "defaults", .group = {opt_spec, opt_spec_count, &spec}},
        {.name = "images", .each = any_pair},
        {0}};
    if (opt_config(&arena, "fuzz", text, size, sections, &err) < 0)
        FUZZ_REQUIRE(err.code != CAY_OK && err.text[0] && !strchr(err.text, '\n'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    config_file(text, size);
    command_line(text);
    free(text);
    return 0;
}
