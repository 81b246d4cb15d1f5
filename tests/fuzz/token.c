/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens files: what is read is printed, and read again it is the same. */
#include "daemon/token.h"
#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    autobuf struct cay_buf out = CAY_BUF(8u << 20);
    struct tokens *tokens = NULL, *again = NULL;
    struct cay_error err = {0};
    if (tokens_parse("fuzz", (const char *)data, size, &tokens, &err) < 0) {
        FUZZ_REQUIRE(!tokens && err.code != CAY_OK && err.text[0] && !strchr(err.text, '\n'));
        return 0;
    }
    for (size_t i = 0; i < tokens_count(tokens); i++) {
        const struct identity *id = &tokens_at(tokens, i)->identity;
        FUZZ_REQUIRE(token_check_name(id->name, NULL) == 0 && id->scopes &&
                     !(id->scopes & ~SCOPE_ALL));
        FUZZ_REQUIRE(!*id->tenant || operator_tenant_ok(id->tenant));
        token_print(tokens_at(tokens, i), &out);
    }
    FUZZ_REQUIRE(tokens_parse("again", out.data, out.size, &again, &err) == 0);
    FUZZ_REQUIRE(tokens_count(again) == tokens_count(tokens));
    for (size_t i = 0; i < tokens_count(again); i++)
        FUZZ_REQUIRE(memcmp(tokens_at(again, i), tokens_at(tokens, i), sizeof(struct token)) == 0);
    tokens_free(again);
    tokens_free(tokens);
    return 0;
}
