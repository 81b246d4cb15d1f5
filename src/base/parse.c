/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parse.h"

#include "base/err.h"
#include "base/limits.h"
#include "base/util.h"

#include <signal.h>
#include <string.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}

struct decimal {
    uint64_t whole;
    uint64_t fraction; /* in 10^-9 */
    bool exact;        /* nothing was beyond nine decimals */
};

/* "12" or "12.5"; returns the first byte after it, NULL when there is no number or it is beyond any
 * use. */
static const char *read_decimal(const char *text, struct decimal *out)
{
    struct decimal d = {.exact = true};
    const char *p = text;
    for (; is_digit(*p); p++)
        if (__builtin_mul_overflow(d.whole, 10, &d.whole) ||
            __builtin_add_overflow(d.whole, (uint64_t)(*p - '0'), &d.whole))
            return NULL;
    if (p == text)
        return NULL;
    if (*p == '.') {
        uint64_t place = 100000000;
        if (!is_digit(*++p))
            return NULL;
        for (; is_digit(*p); p++, place /= 10) {
            d.fraction += (uint64_t)(*p - '0') * place;
            if (place == 0 && *p != '0')
                d.exact = false;
        }
    }
    *out = d;
    return p;
}

/* d * factor, rounded up to a whole number; false when it does not fit. */
static bool scale_up(const struct decimal *d, uint64_t factor, uint64_t *out)
{
    unsigned __int128 part = (unsigned __int128)d->fraction * factor;
    uint64_t whole, extra = (uint64_t)((part + 999999999) / 1000000000);
    if (part == 0 && !d->exact)
        extra = 1;
    return !__builtin_mul_overflow(d->whole, factor, &whole) &&
           !__builtin_add_overflow(whole, extra, out);
}

static int bad_size(const char *text, struct cay_error *err)
{
    return cay_fail(err, CAY_E_INVALID,
                    "bad size '%.64s': expected a number with K, M, G or T, such as 512M", text);
}

int parse_size(const char *text, uint64_t *out, struct cay_error *err)
{
    static const struct unit units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1ull << 10},
        {"KB", 1ull << 10},
        {"Ki", 1ull << 10},
        {"KiB", 1ull << 10},
        {"M", 1ull << 20},
        {"MB", 1ull << 20},
        {"Mi", 1ull << 20},
        {"MiB", 1ull << 20},
        {"G", 1ull << 30},
        {"GB", 1ull << 30},
        {"Gi", 1ull << 30},
        {"GiB", 1ull << 30},
        {"T", 1ull << 40},
        {"TB", 1ull << 40},
        {"Ti", 1ull << 40},
        {"TiB", 1ull << 40},
    };
    struct decimal number;
    const char *rest = read_decimal(text, &number);
    if (!rest)
        return bad_size(text, err);
    for (size_t i = 0; i < CAY_COUNT(units); i++) {
        if (strcasecmp(rest, units[i].name) != 0)
            continue;
        uint64_t bytes;
        if (units[i].factor == 1 && (number.fraction || !number.exact))
            break;
        if (!scale_up(&number, units[i].factor, &bytes) || bytes > INT64_MAX)
            return cay_fail(err, CAY_E_INVALID, "bad size '%.64s': larger than any machine", text);
        *out = bytes;
        return 0;
    }
    return bad_size(text, err);
}

static int bad_duration(const char *text, struct cay_error *err)
{
    return cay_fail(
        err, CAY_E_INVALID,
        "bad duration '%.64s': expected a number with ms, s, m, h or d, such as 90s or 1h30m",
        text);
}

/* The unit at `p`, longest name first; NULL when there is none. */
static const struct unit *read_time_unit(const char *p)
{
    static const struct unit units[] = {
        {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000},
    };
    for (size_t i = 0; i < CAY_COUNT(units); i++)
        if (strncmp(p, units[i].name, strlen(units[i].name)) == 0)
            return &units[i];
    return NULL;
}

int parse_duration(const char *text, uint64_t *ms, struct cay_error *err)
{
    uint64_t sum = 0, last = UINT64_MAX;
    const char *p = text;
    do {
        struct decimal number;
        uint64_t part;
        p = read_decimal(p, &number);
        if (!p)
            return bad_duration(text, err);
        const struct unit *unit = read_time_unit(p);
        if (!unit && (*p || last != UINT64_MAX))
            return bad_duration(text, err);
        uint64_t factor = unit ? unit->factor : 1000;
        /* Each unit once, in falling order: "30m1h" is more likely a mistake than a wish. */
        if (factor >= last)
            return bad_duration(text, err);
        if (!scale_up(&number, factor, &part) || __builtin_add_overflow(sum, part, &sum) ||
            sum > INT64_MAX / 1000)
            return cay_fail(err, CAY_E_INVALID, "bad duration '%.64s': too long", text);
        last = factor;
        p += unit ? strlen(unit->name) : 0;
    } while (*p);
    *ms = sum;
    return 0;
}

int parse_count(const char *text, uint64_t *out, struct cay_error *err)
{
    struct decimal number;
    const char *rest = strchr(text, '.') ? NULL : read_decimal(text, &number);
    if (!rest || *rest || number.whole > INT64_MAX)
        return cay_fail(err, CAY_E_INVALID,
                        "bad number '%.64s': expected a whole number, such as 100", text);
    *out = number.whole;
    return 0;
}

int parse_key(const char *text, struct cay_error *err)
{
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    if (n < 1 || n >= CAY_MAX_KEY || text[n])
        return cay_fail(err, CAY_E_INVALID, "a key has 1 to %d of A-Z, a-z, 0-9, '.', '_', '-'",
                        CAY_MAX_KEY - 1);
    return 0;
}

int parse_cpus(const char *text, uint64_t *thousandths, struct cay_error *err)
{
    struct decimal number;
    uint64_t value;
    const char *rest = read_decimal(text, &number);
    if (!rest || *rest || !number.exact || number.fraction % 1000000 || number.whole > 1000000 ||
        !scale_up(&number, 1000, &value))
        return cay_fail(
            err, CAY_E_INVALID,
            "bad number of CPUs '%.64s': expected a number with up to three decimals, such as "
            "1 or 0.5",
            text);
    *thousandths = value;
    return 0;
}

int parse_pid(const char *text, pid_t *out, struct cay_error *err)
{
    uint64_t value;
    if (parse_count(text, &value, NULL) < 0 || value == 0 || value > INT32_MAX)
        return cay_fail(err, CAY_E_INVALID,
                        "bad process '%.64s': expected a number as 'cay procs' shows it", text);
    *out = (pid_t)value;
    return 0;
}

int parse_signal(const char *text, int *out, struct cay_error *err)
{
    static const struct {
        const char *name;
        int number;
    } signals[] = {
        {"HUP", SIGHUP},       {"INT", SIGINT},     {"QUIT", SIGQUIT}, {"ILL", SIGILL},
        {"TRAP", SIGTRAP},     {"ABRT", SIGABRT},   {"BUS", SIGBUS},   {"FPE", SIGFPE},
        {"KILL", SIGKILL},     {"USR1", SIGUSR1},   {"SEGV", SIGSEGV}, {"USR2", SIGUSR2},
        {"PIPE", SIGPIPE},     {"ALRM", SIGALRM},   {"TERM", SIGTERM}, {"CHLD", SIGCHLD},
        {"CONT", SIGCONT},     {"STOP", SIGSTOP},   {"TSTP", SIGTSTP}, {"TTIN", SIGTTIN},
        {"TTOU", SIGTTOU},     {"URG", SIGURG},     {"XCPU", SIGXCPU}, {"XFSZ", SIGXFSZ},
        {"PROF", SIGPROF},     {"IO", SIGIO},       {"PWR", SIGPWR},   {"SYS", SIGSYS},
        {"VTALRM", SIGVTALRM}, {"WINCH", SIGWINCH},
    };
    uint64_t value;
    if (parse_count(text, &value, NULL) == 0 && value >= 1 && value <= 64) {
        *out = (int)value;
        return 0;
    }
    const char *name = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
    for (size_t i = 0; i < CAY_COUNT(signals); i++)
        if (strcasecmp(name, signals[i].name) == 0) {
            *out = signals[i].number;
            return 0;
        }
    return cay_fail(err, CAY_E_INVALID,
                    "bad signal '%.64s': expected a name such as TERM, or 1 to 64", text);
}

int parse_mode(const char *text, uint32_t *out, struct cay_error *err)
{
    uint32_t value = 0;
    size_t n = strspn(text, "01234567");
    for (size_t i = 0; i < n && n <= 5; i++)
        value = value * 8 + (uint32_t)(text[i] - '0');
    if (n == 0 || n > 5 || text[n] || value > 07777)
        return cay_fail(err, CAY_E_INVALID, "bad mode '%.64s': expected octal digits, such as 644",
                        text);
    *out = value;
    return 0;
}

#define ALNUM "abcdefghijklmnopqrstuvwxyz0123456789"

int parse_id(const char *text, const char **out, struct cay_error *err)
{
    const char *name = parse_id_name(text);
    size_t tenant = strspn(text, ALNUM "-"), n = strspn(name, ALNUM "._-");
    /* The tenant's name is all that is before the '~', if there is one. */
    bool whose = name == text ||
                 (text + tenant + 1 == name && tenant < CAY_MAX_TENANT && strspn(text, ALNUM) > 0);
    if (!whose || name[n] || n >= CAY_MAX_NAME || strspn(name, ALNUM) == 0)
        return cay_fail(
            err, CAY_E_INVALID,
            "bad id '%.64s': expected 1 to %d of a-z, 0-9, '.', '_', '-', the first a letter or "
            "digit",
            text, CAY_MAX_NAME - 1);
    *out = text;
    return 0;
}

const char *parse_id_name(const char *id)
{
    const char *end = strchr(id, '~');
    return end ? end + 1 : id;
}

bool parse_id_reserved(const char *id)
{
    return strncmp(id, PARSE_POOL, sizeof(PARSE_POOL) - 1) == 0;
}

static const char *const profiles[] = {
    [CAY_PROFILE_UNSET] = "unset",
    [CAY_PROFILE_DEFAULT] = "default",
    [CAY_PROFILE_STRICT] = "strict",
    [CAY_PROFILE_NESTED] = "nested",
};

int parse_profile(const char *text, enum cay_profile *out, struct cay_error *err)
{
    for (size_t i = CAY_PROFILE_DEFAULT; i < CAY_COUNT(profiles); i++)
        if (strcmp(text, profiles[i]) == 0) {
            *out = (enum cay_profile)i;
            return 0;
        }
    return cay_fail(err, CAY_E_INVALID, "bad profile '%.64s': expected strict, default or nested",
                    text);
}

const char *parse_profile_name(enum cay_profile profile)
{
    return (size_t)profile < CAY_COUNT(profiles) ? profiles[profile] : "unknown";
}

/* Length of the environment name at the start of the text. */
static size_t env_name_size(const char *text)
{
    size_t n = 0;
    while (text[n] && text[n] != '=' && text[n] != ' ' && !is_control(text[n]))
        n++;
    return n;
}

int parse_env_name(const char *text, const char **out, struct cay_error *err)
{
    size_t n = env_name_size(text);
    if (n == 0 || text[n])
        return cay_fail(
            err, CAY_E_INVALID,
            "bad environment name '%.64s': expected a name with no blank and no '=', such as HOME",
            text);
    *out = text;
    return 0;
}

int parse_env(const char *text, struct parse_span *name, const char **value, struct cay_error *err)
{
    size_t n = env_name_size(text);
    if (n == 0 || text[n] != '=')
        return cay_fail(err, CAY_E_INVALID, "bad environment entry '%.64s': expected NAME=VALUE",
                        text);
    *name = (struct parse_span){text, n};
    *value = text + n + 1;
    return 0;
}

int parse_label(const char *text, struct parse_span *key, const char **value, struct cay_error *err)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-");
    if (n == 0 || text[n] != '=')
        return cay_fail(
            err, CAY_E_INVALID,
            "bad label '%.64s': expected KEY=VALUE, the key of letters, digits, '.', '_', '/', "
            "'-'",
            text);
    for (const char *p = text + n; *p; p++)
        if (is_control(*p))
            return cay_fail(err, CAY_E_INVALID,
                            "bad label '%.64s': control characters are not allowed", text);
    if (strlen(text) >= CAY_MAX_LABEL)
        return cay_fail(err, CAY_E_TOO_LARGE, "bad label '%.64s...': longer than %d bytes", text,
                        CAY_MAX_LABEL - 1);
    *key = (struct parse_span){text, n};
    *value = text + n + 1;
    return 0;
}

/* True if a component of the path is "..": a target must mean the same before and after it is
 * resolved. */
static bool has_dotdot(struct parse_span path)
{
    for (size_t i = 0; i + 1 < path.size; i++)
        if (path.data[i] == '.' && path.data[i + 1] == '.' && (i == 0 || path.data[i - 1] == '/') &&
            (i + 2 == path.size || path.data[i + 2] == '/'))
            return true;
    return false;
}

int parse_mount(const char *text, struct parse_mount *out, struct cay_error *err)
{
    size_t size = strlen(text);
    bool read_only = false;
    if (size > 3 && (strcmp(text + size - 3, ":ro") == 0 || strcmp(text + size - 3, ":rw") == 0)) {
        read_only = text[size - 1] == 'o';
        size -= 3;
    }
    /* The last colon: host paths may have some, targets may not. */
    const char *colon = memrchr(text, ':', size);
    struct parse_span source = {text, colon ? (size_t)(colon - text) : 0};
    struct parse_span target = {colon ? colon + 1 : text, colon ? size - source.size - 1 : 0};
    if (source.size == 0 || target.size == 0 || target.data[0] != '/')
        return cay_fail(
            err, CAY_E_INVALID,
            "bad mount '%.200s': expected HOST:DEST[:ro|:rw] with an absolute DEST, such as "
            "/data:/data:ro",
            text);
    if (has_dotdot(target))
        return cay_fail(err, CAY_E_INVALID, "bad mount '%.200s': DEST may not contain '..'", text);
    if (strspn(target.data, "/") >= target.size)
        return cay_fail(err, CAY_E_INVALID,
                        "bad mount '%.200s': DEST may not be the root directory", text);
    if (source.size >= CAY_MAX_PATH || target.size >= CAY_MAX_PATH)
        return cay_fail(err, CAY_E_TOO_LARGE, "bad mount '%.200s...': path too long", text);
    *out = (struct parse_mount){source, target, read_only};
    return 0;
}
