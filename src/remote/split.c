/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/split.h"

void split_init(struct split *split, unsigned at,
                int (*each)(const char *json, size_t size, void *data), void *data)
{
    *split = (struct split){
        .at = at,
        .element = CAY_BUF(SPLIT_MAX_ELEMENT),
        .rest = CAY_BUF(SPLIT_MAX_REST),
        .each = each,
        .data = data,
    };
}

void split_done(struct split *split)
{
    buf_done(&split->element);
    buf_done(&split->rest);
}

bool split_ended(const struct split *split)
{
    return split->depth == 0 && !split->quoted;
}

static bool starts_element(const struct split *split, char c)
{
    return c == '{' && split->depth == split->at &&
           (split->at == 0 || (split->arrays >> (split->depth - 1) & 1));
}

/* Keeps track of strings and brackets. -1: more closed than opened, or too deep. */
static int track(struct split *split, char c)
{
    if (split->quoted) {
        if (split->escaped)
            split->escaped = false;
        else if (c == '\\')
            split->escaped = true;
        else if (c == '"')
            split->quoted = false;
        return 0;
    }
    if (c == '"') {
        split->quoted = true;
    } else if (c == '{' || c == '[') {
        if (split->depth >= SPLIT_MAX_DEPTH)
            return -1;
        uint32_t bit = (uint32_t)1 << split->depth++;
        split->arrays = c == '[' ? split->arrays | bit : split->arrays & ~bit;
    } else if (c == '}' || c == ']') {
        if (split->depth == 0 || (split->arrays >> --split->depth & 1) != (c == ']'))
            return -1;
    }
    return 0;
}

/* The comma between two elements would be left alone without them. */
static bool belongs_to_rest(const struct split *split, char c)
{
    bool in_list =
        split->depth == split->at && (split->at == 0 || (split->arrays >> (split->depth - 1) & 1));
    return split->quoted || !(in_list && (c == ',' || c == '\n' || c == '\r' || c == ' '));
}

static int take(struct split *split, char c)
{
    if (!split->inside && !split->quoted && starts_element(split, c)) {
        split->inside = true;
        split->element.size = 0;
    } else if (!split->inside && belongs_to_rest(split, c)) {
        if (split->at == 0 || buf_add(&split->rest, &c, 1) < 0)
            return -1; /* between lines there is nothing */
    }
    if (split->inside && buf_add(&split->element, &c, 1) < 0)
        return -1;
    if (track(split, c) < 0)
        return -1;
    if (!split->inside || split->quoted || split->depth != split->at)
        return 0;
    split->inside = false;
    const char *json = buf_cstr(&split->element);
    return json ? split->each(json, split->element.size, split->data) != 0 : -1;
}

int split_feed(struct split *split, const char *bytes, size_t size)
{
    int result = 0;
    for (size_t i = 0; i < size && result == 0; i++)
        result = take(split, bytes[i]);
    split->broken = result < 0;
    return result;
}
