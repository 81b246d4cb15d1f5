/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/fronts/key.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/parse.h"
#include "base/util.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>

#define DIGEST 32 /* SHA-256 */

/* Lines of what is signed: none of them can have a newline in it. */
static int sign(const unsigned char secret[KEY_SECRET], const struct cay_buf *text,
                unsigned char *out, size_t size, struct cay_error *err)
{
    unsigned char digest[DIGEST];
    if (buf_failed(text) ||
        gnutls_hmac_fast(GNUTLS_MAC_SHA256, secret, KEY_SECRET, text->data, text->size, digest) < 0)
        return cay_fail(err, CAY_E_INTERNAL, "cannot make a key");
    memcpy(out, digest, size);
    return 0;
}

int key_birth(const unsigned char secret[KEY_SECRET], const struct status *status,
              unsigned char out[KEY_BIRTH], struct cay_error *err)
{
    autobuf struct cay_buf text = CAY_BUF(256);
    buf_fmt(&text, "birth\n%llu\n%llu\n%.64s\n", (unsigned long long)status->created_ms,
            (unsigned long long)status->keeper_pid, status->boot_id ? status->boot_id : "");
    return sign(secret, &text, out, KEY_BIRTH, err);
}

static int make_mac(const unsigned char secret[KEY_SECRET], const char *front, const char *id,
                    const unsigned char birth[KEY_BIRTH], unsigned char out[KEY_MAC],
                    struct cay_error *err)
{
    autobuf struct cay_buf text = CAY_BUF(256);
    buf_fmt(&text, "key\n%s\n%s\n", front, id);
    buf_add(&text, birth, KEY_BIRTH);
    return sign(secret, &text, out, KEY_MAC, err);
}

/* Between the two alphabets of base64, which differ in two characters. */
static void swap(char *text, const char from[3], const char to[3])
{
    for (; *text; text++)
        *text = *text == from[0] ? to[0] : *text == from[1] ? to[1] : *text;
}

int key_print(const unsigned char secret[KEY_SECRET], const char *front, const char *id,
              const unsigned char birth[KEY_BIRTH], char out[KEY_TEXT], struct cay_error *err)
{
    unsigned char tag[KEY_BIRTH + KEY_MAC];
    char text[KEY_TAG + 1];
    memcpy(tag, birth, KEY_BIRTH);
    if (make_mac(secret, front, id, birth, tag + KEY_BIRTH, err) < 0)
        return -1;
    base64_text(text, tag, sizeof(tag));
    text[KEY_TAG] = 0;
    swap(text, "+/", "-_");
    snprintf(out, KEY_TEXT, "%s.%s", id, text);
    return 0;
}

bool key_open(const unsigned char secret[KEY_SECRET], const char *front, const char *text,
              char id[CAY_MAX_ID], unsigned char birth[KEY_BIRTH])
{
    autobuf struct cay_buf tag = CAY_BUF(KEY_BIRTH + KEY_MAC);
    unsigned char mac[KEY_MAC];
    char name[CAY_MAX_ID], coded[KEY_TAG + 1];
    const char *dot = strrchr(text, '.'), *checked;
    size_t n = dot ? (size_t)(dot - text) : 0;
    if (n == 0 || n >= sizeof(name) || strlen(dot + 1) != KEY_TAG || strpbrk(dot + 1, "+/"))
        return false;
    memcpy(name, text, n);
    name[n] = 0;
    memcpy(coded, dot + 1, sizeof(coded));
    swap(coded, "-_", "+/");
    if (parse_id(name, &checked, NULL) < 0 || parse_id_reserved(name) ||
        base64_decode(coded, KEY_TAG, &tag, NULL) < 0 || tag.size != KEY_BIRTH + KEY_MAC ||
        make_mac(secret, front, name, (const unsigned char *)tag.data, mac, NULL) < 0 ||
        gnutls_memcmp(mac, tag.data + KEY_BIRTH, KEY_MAC) != 0)
        return false;
    memcpy(id, name, n + 1);
    memcpy(birth, tag.data, KEY_BIRTH);
    return true;
}

bool key_same_birth(const unsigned char a[KEY_BIRTH], const unsigned char b[KEY_BIRTH])
{
    return gnutls_memcmp(a, b, KEY_BIRTH) == 0;
}
