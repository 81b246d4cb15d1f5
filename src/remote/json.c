/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/json.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

json_t *json_parse(const char *bytes, size_t size)
{
    json_error_t why;
    json_t *value = size ? json_loadb(bytes, size, 0, &why) : NULL;
    /* Numbers from 2^63 on, "no limit" or the inode of a union mount, are no integers of jansson.
     */
    if (!value && size && json_error_code(&why) == json_error_numeric_overflow)
        value = json_loadb(bytes, size, JSON_DECODE_INT_AS_REAL, NULL);
    return value;
}

const char *json_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

uint64_t json_u64(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    if (json_is_real(value)) {
        double real = json_real_value(value);
        return real >= 18446744073709551615.0 ? UINT64_MAX : real > 0 ? (uint64_t)real : 0;
    }
    json_int_t number = json_integer_value(value);
    return number > 0 ? (uint64_t)number : 0;
}

bool json_flag(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

uint64_t json_milli(const json_t *object, const char *name)
{
    double value = json_number_value(json_object_get(object, name));
    return value > 0 && value < 1e15 ? (uint64_t)llround(value * 1000) : 0;
}

static char *decode(const char *base64)
{
    autobuf struct cay_buf bytes = CAY_BUF(SIZE_MAX / 4);
    return base64_decode(base64, strlen(base64), &bytes, NULL) < 0 ? NULL : buf_steal(&bytes, NULL);
}

char *json_bytes(const json_t *object, const char *name)
{
    char encoded[64];
    snprintf(encoded, sizeof(encoded), "%s_base64", name);
    const char *base64 = json_string_value(json_object_get(object, encoded));
    const char *text = json_string_value(json_object_get(object, name));
    return base64 ? decode(base64) : text ? strdup(text) : NULL;
}

int json_to_error(const json_t *error, struct cay_error *err)
{
    const json_t *detail = json_object_get(error, "detail");
    json_int_t eno = json_integer_value(json_object_get(detail, "errno"));
    const char *text = json_text(error, "message");
    return cay_fail_copy(err, cay_code_of_name(json_text(error, "code")),
                         eno > 0 && eno < 4096 ? (int)eno : 0,
                         *text ? text : "the daemon's answer is an error without a message");
}

bool json_is_exit(const json_t *object)
{
    return json_is_integer(json_object_get(object, "exit_code"));
}

void json_to_exit(const json_t *object, struct cay_exit *out)
{
    *out = (struct cay_exit){
        .pid = (pid_t)json_u64(object, "pid"),
        .exit_code = (int)json_u64(object, "exit_code"),
        .signal = (int)json_u64(object, "signal"),
        .timed_out = json_flag(object, "timed_out"),
        .oom = json_flag(object, "oom"),
        .truncated = json_flag(object, "truncated"),
        .duration_us = json_milli(object, "duration_ms"),
        .cpu_us = json_milli(object, "cpu_ms"),
        .peak_memory = json_u64(object, "peak_memory"),
    };
    snprintf(out->reason, sizeof(out->reason), "%s", json_text(object, "reason"));
}

/* ---- out ------------------------------------------------------------------------------------- */

static int set(json_t *object, const char *name, json_t *value, struct cay_error *err)
{
    if (json_object_set_new(object, name, value) == 0)
        return 0;
    return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
}

static int not_utf8(const char *name, const char *value, struct cay_error *err)
{
    return cay_fail(err, CAY_E_UNSUPPORTED,
                    "%s '%.64s' is not UTF-8, and only UTF-8 can be sent to another host", name,
                    value);
}

int json_set_str(json_t *object, const char *name, const char *value, struct cay_error *err)
{
    if (!value)
        return 0;
    json_t *text = json_string(value);
    return text ? set(object, name, text, err) : not_utf8(name, value, err);
}

int json_set_num(json_t *object, const char *name, uint64_t value, struct cay_error *err)
{
    char digits[24];
    if (value == 0)
        return 0;
    if (value <= INT64_MAX)
        return set(object, name, json_integer((json_int_t)value), err);
    snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    return json_set_str(object, name, digits, err);
}

int json_set_ms(json_t *object, const char *name, uint64_t ms, struct cay_error *err)
{
    char text[32];
    snprintf(text, sizeof(text), "%llums", (unsigned long long)ms);
    return ms ? json_set_str(object, name, text, err) : 0;
}

int json_set_list(json_t *object, const char *name, const char *const *list, struct cay_error *err)
{
    if (!list)
        return 0;
    json_t *array = json_array();
    for (; *list; list++) {
        json_t *text = json_string(*list);
        if (json_array_append_new(array, text) < 0) {
            json_decref(array);
            return not_utf8(name, *list, err);
        }
    }
    return set(object, name, array, err);
}

int json_set_pairs(json_t *object, const char *name, const char *const *list, struct cay_error *err)
{
    if (!list)
        return 0;
    json_t *pairs = json_object();
    for (; *list; list++) {
        size_t n = strcspn(*list, "=");
        autofree char *key = strndup(*list, n);
        if (!key || !(*list)[n] ||
            json_object_set_new(pairs, key, json_string(*list + n + 1)) < 0) {
            json_decref(pairs);
            return (*list)[n]
                       ? not_utf8(name, *list, err)
                       : cay_fail(err, CAY_E_INVALID, "%s '%.64s' is not NAME=VALUE", name, *list);
        }
    }
    return set(object, name, pairs, err);
}
