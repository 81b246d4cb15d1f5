/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens, their file and its commands; and how host paths are resolved for the operator policy. */
#include "base/util.h"
#include "daemon/resolve.h"
#include "daemon/token.h"
#include "daemon/token_cmd.h"
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define HASH "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static struct cay_error err;
static char dir[64];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/cay-token-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return cay_remove_tree_at(AT_FDCWD, dir);
}

static const char *in_dir(const char *name)
{
    static char paths[4][CAY_MAX_PATH];
    static unsigned next;
    char *path = paths[next++ % COUNT(paths)];
    snprintf(path, CAY_MAX_PATH, "%s/%s", dir, name);
    return path;
}

static void put(const char *name, const char *text, mode_t mode)
{
    int fd = open(in_dir(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(cay_write_all(fd, text, strlen(text)), 0);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static const char *get(const char *name)
{
    static char text[65536];
    assert_true(cay_read_file_at(AT_FDCWD, in_dir(name), text, sizeof(text)) >= 0);
    return text;
}

/* ---- the format ------------------------------------------------------------------------------ */

static int parse(const char *text, struct tokens **out)
{
    err = (struct cay_error){0};
    return tokens_parse("tokens", text, strlen(text), out, &err);
}

TEST(lines)
{
    struct tokens *t;
    assert_int_equal(parse("", &t), 0);
    assert_int_equal(tokens_count(t), 0);
    tokens_free(t);
    assert_int_equal(tokens_parse("tokens", NULL, 0, &t, &err), 0);
    tokens_free(t);
    assert_int_equal(parse("# comment\n\n  ci " HASH " tenant=acme\tscopes=read,exec "
                           "expires=2027-01-01T00:00:00Z created=2026-01-02\r\n"
                           "op " HASH " scopes=all tenant=-",
                           &t),
                     0);
    assert_int_equal(tokens_count(t), 2);
    const struct token *a = tokens_at(t, 0), *b = tokens_at(t, 1);
    assert_string_equal(a->identity.name, "ci");
    assert_string_equal(a->identity.tenant, "acme");
    assert_int_equal(a->identity.scopes, SCOPE_READ | SCOPE_EXEC);
    assert_true(a->expires_ms == 1798761600000 && a->created_ms == 1767312000000);
    assert_int_equal(a->hash[1], 0x23);
    assert_string_equal(b->identity.tenant, "");
    assert_int_equal(b->identity.scopes, SCOPE_ALL);
    assert_int_equal(b->expires_ms, 0);
    tokens_free(t);
}

TEST(what_is_printed_is_what_is_read)
{
    autobuf struct cay_buf out = CAY_BUF(4096);
    struct token token = {.identity = {"a.b_c-D", "acme", SCOPE_FILES | SCOPE_METRICS},
                          .expires_ms = 253402300799000,
                          .created_ms = 1767312000000};
    memset(token.hash, 0xa5, sizeof(token.hash));
    token_print(&token, &out);
    struct tokens *t;
    assert_int_equal(tokens_parse("x", out.data, out.size, &t, &err), 0);
    assert_memory_equal(tokens_at(t, 0), &token, sizeof(token));
    tokens_free(t);
}

TEST(bad_lines)
{
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"# x\nci\n", "tokens:2: expected sha256:"},
        {"ci " HASH " scopes=read\n", "tenant= is missing"}, /* never the operator by omission */
        {"ci " HASH " tenant=a\n", "scopes= is missing"},
        {"ci " HASH " tenant= scopes=read\n", "tenant"},
        {"ci " HASH " tenant=pool scopes=read\n", "pool"},
        {"ci " HASH " tenant=A scopes=read\n", "'A'"},
        {"ci " HASH " tenant=a scopes=raed\n", "did you mean 'read'"},
        {"ci " HASH " tenant=a scopes=xyzzy\n", "there are read,create,exec,files,audit,metrics"},
        {"ci " HASH " tenant=a scopes=read,\n", "unknown scope"},
        {"ci " HASH " tenant=a scopes=\n", "unknown scope"},
        {"ci " HASH " tenant=a scopes=read tenant=b\n", "given twice"},
        {"ci " HASH " tenant=a scopes=read expire=never\n", "did you mean 'expires'"},
        {"ci " HASH " tenant=a scopes=read word\n", "expected KEY=VALUE"},
        {"ci " HASH " tenant=a scopes=read expires=2027-02-30\n", "bad time"},
        {"ci " HASH " tenant=a scopes=read expires=soon\n", "bad time"},
        {"ci " HASH "0 tenant=a scopes=read\n", "64 hex"},
        {"ci sha256:0123 tenant=a scopes=read\n", "64 hex"},
        {"ci md5:0123 tenant=a scopes=read\n", "sha256"},
        {"c/i " HASH " tenant=a scopes=read\n", "name"},
        {"-ci " HASH " tenant=a scopes=read\n", "name"},
        {"ci " HASH " tenant=a scopes=read\nci " HASH " tenant=a scopes=read\n", "tokens:2: two"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct tokens *t = NULL;
        assert_int_equal(parse(rows[i].text, &t), -1);
        assert_null(t);
        assert_error(err, CAY_E_INVALID, rows[i].part);
    }
}

TEST(files_have_limits)
{
    autobuf struct cay_buf text = CAY_BUF(4u << 20);
    struct tokens *t;
    for (int i = 0; i < TOKENS_MAX; i++)
        buf_fmt(&text, "t%d %s tenant=a scopes=read\n", i, HASH);
    assert_int_equal(tokens_parse("x", text.data, text.size, &t, &err), 0);
    assert_int_equal(tokens_count(t), TOKENS_MAX);
    tokens_free(t);
    buf_fmt(&text, "more %s tenant=a scopes=read\n", HASH);
    assert_int_equal(tokens_parse("x", text.data, text.size, &t, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "tokens");
    text.size = 0;
    for (int i = 0; i < 5000; i++)
        buf_str(&text, "#");
    assert_int_equal(tokens_parse("x", text.data, text.size, &t, &err), -1);
    assert_error(err, CAY_E_INVALID, "x:1");
    while (text.size <= TOKENS_MAX_FILE)
        buf_str(&text, "#\n");
    assert_int_equal(tokens_parse("x", text.data, text.size, &t, &err), -1);
    assert_error(err, CAY_E_TOO_LARGE, "larger");
    assert_int_equal(tokens_parse("x", "a\0b", 3, &t, &err), -1);
}

TEST(times)
{
    static const char *const bad[] = {"",
                                      "2027",
                                      "2027-13-01",
                                      "2027-00-01",
                                      "2027-01-32",
                                      "2026-02-29",
                                      "2027-1-1",
                                      "2027-01-01T00:00:00",
                                      "2027-01-01T24:00:00Z",
                                      "2027-01-01T00:60:00Z",
                                      "2027-01-01 00:00:00Z",
                                      "1969-12-31",
                                      "2027-01-01T00:00:00+"};
    uint64_t ms;
    assert_int_equal(token_parse_time("1970-01-01", &ms, &err), 0);
    assert_int_equal(ms, 0);
    assert_int_equal(token_parse_time("2028-02-29T23:59:59Z", &ms, &err), 0);
    assert_true(ms == 1835481599000);
    autobuf struct cay_buf out = CAY_BUF(64);
    token_print_time(ms, &out);
    assert_string_equal(buf_cstr(&out), "2028-02-29T23:59:59Z");
    for (size_t i = 0; i < COUNT(bad); i++)
        if (token_parse_time(bad[i], &ms, &err) == 0)
            fail_msg("%s", bad[i]);
}

/* ---- who is it ------------------------------------------------------------------------------- */

TEST(finding)
{
    char first[TOKEN_TEXT], second[TOKEN_TEXT], text[TOKEN_TEXT + 8];
    struct token a = {.identity = {"one", "acme", SCOPE_READ}, .expires_ms = 5000};
    struct token b = {.identity = {"two", "", SCOPE_ALL}};
    autobuf struct cay_buf file = CAY_BUF(4096);
    struct tokens *t, *none;
    struct identity who = {"untouched", "", 0};
    assert_int_equal(token_make(first, a.hash, &err), 0);
    assert_int_equal(token_make(second, b.hash, &err), 0);
    assert_string_not_equal(first, second);
    assert_int_equal(strlen(first), 47);
    assert_int_equal(strncmp(first, "cay_", 4), 0);
    assert_int_equal(strspn(first + 4, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                       "0123456789-_"),
                     43);
    token_print(&a, &file);
    token_print(&b, &file);
    assert_null(strstr(buf_cstr(&file), first + 4));
    assert_int_equal(tokens_parse("x", file.data, file.size, &t, &err), 0);
    assert_int_equal(tokens_parse("x", "", 0, &none, &err), 0);

    static const char *const strangers[] = {"", "cay_", "one",
                                            "cay_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"};
    for (size_t i = 0; i < COUNT(strangers); i++) {
        assert_int_equal(tokens_find(t, strangers[i], 1000, &who, &err), -1);
        assert_error(err, CAY_E_UNAUTHORIZED, "not known");
    }
    assert_int_equal(tokens_find(t, NULL, 1000, &who, &err), -1);
    assert_int_equal(tokens_find(none, first, 1000, &who, &err), -1);
    assert_int_equal(tokens_find(NULL, first, 1000, &who, &err), -1);
    snprintf(text, sizeof(text), "%sx", first);
    assert_int_equal(tokens_find(t, text, 1000, &who, &err), -1);
    snprintf(text, sizeof(text), "%.46s", first);
    assert_int_equal(tokens_find(t, text, 1000, &who, &err), -1);
    char huge[2000];
    memset(huge, 'a', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = 0;
    assert_int_equal(tokens_find(t, huge, 1000, &who, &err), -1);
    assert_string_equal(who.name, "untouched");

    assert_int_equal(tokens_find(t, first, 4999, &who, &err), 0);
    assert_string_equal(who.name, "one");
    assert_string_equal(who.tenant, "acme");
    assert_int_equal(who.scopes, SCOPE_READ);
    assert_int_equal(tokens_find(t, first, 5000, &who, &err), -1);
    assert_error(err, CAY_E_UNAUTHORIZED, "expired");
    assert_null(strstr(err.text, first));
    assert_int_equal(tokens_find(t, second, UINT64_MAX, &who, &err), 0);
    assert_string_equal(who.name, "two");
    assert_string_equal(who.tenant, "");
    tokens_free(t);
    tokens_free(none);
}

TEST(known_hash)
{
    unsigned char hash[32];
    assert_int_equal(token_hash("abc", hash, &err), 0);
    assert_true(hash[0] == 0xba && hash[1] == 0x78 && hash[31] == 0xad);
}

TEST(scopes)
{
    uint32_t bits;
    assert_int_equal(scopes_parse("read,create,exec,files,audit,metrics", &bits, &err), 0);
    assert_int_equal(bits, SCOPE_ALL);
    assert_string_equal(scope_name(SCOPE_AUDIT), "audit");
    assert_null(scope_name(SCOPE_AUDIT | SCOPE_READ));
    assert_null(scope_name(0));
    assert_null(scope_name(1u << 31));
    assert_int_equal(scopes_parse("rea", &bits, &err), -1);
    assert_int_equal(scopes_parse("read create", &bits, &err), -1);
    assert_int_equal(scopes_parse("READ", &bits, &err), -1);
}

/* ---- files ----------------------------------------------------------------------------------- */

TEST(only_private_files_are_read)
{
    static const mode_t bad[] = {0640, 0604, 0620, 0602, 0610, 0644, 0666};
    struct tokens *t;
    assert_int_equal(tokens_load(in_dir("missing"), &t, &err), 0);
    assert_int_equal(tokens_count(t), 0);
    tokens_free(t);
    put("t", "ci " HASH " tenant=a scopes=read\n", 0600);
    assert_int_equal(tokens_load(in_dir("t"), &t, &err), 0);
    assert_int_equal(tokens_count(t), 1);
    tokens_free(t);
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(chmod(in_dir("t"), bad[i]), 0);
        assert_int_equal(tokens_load(in_dir("t"), &t, &err), -1);
        assert_error(err, CAY_E_DENIED, "chmod 600");
    }
    assert_int_equal(chmod(in_dir("t"), 0400), 0);
    assert_int_equal(tokens_load(in_dir("t"), &t, &err), 0);
    tokens_free(t);
    assert_int_equal(tokens_load(dir, &t, &err), -1);
    assert_int_equal(mkfifo(in_dir("pipe"), 0600), 0);
    assert_int_equal(tokens_load(in_dir("pipe"), &t, &err), -1);
    assert_error(err, CAY_E_INVALID, "plain file");
    if (geteuid() == 0) {
        assert_int_equal(chown(in_dir("t"), 12345, 0), 0);
        assert_int_equal(tokens_load(in_dir("t"), &t, &err), -1);
        assert_error(err, CAY_E_DENIED, "12345");
    }
}

TEST(refresh)
{
    struct tokens *t = NULL;
    const char *path = in_dir("r");
    assert_int_equal(tokens_refresh(path, &t, &err), 1); /* nothing there */
    assert_int_equal(tokens_refresh(path, &t, &err), 0);
    put("r", "ci " HASH " tenant=a scopes=read\n", 0600);
    assert_int_equal(tokens_refresh(path, &t, &err), 1);
    assert_int_equal(tokens_count(t), 1);
    assert_int_equal(tokens_refresh(path, &t, &err), 0);
    put("r", "nonsense\n", 0600);
    assert_int_equal(tokens_refresh(path, &t, &err), -1);
    assert_int_equal(tokens_count(t), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(tokens_refresh(path, &t, &err), 1);
    assert_int_equal(tokens_count(t), 0);
    tokens_free(t);
}

/* ---- commands -------------------------------------------------------------------------------- */

/* Runs `cayd token ARGS`, with its output in the files "out" and "err". */
static int run(const char *line)
{
    char copy[512], *argv[32] = {NULL}, *save = NULL;
    int argc = 0, status = 0;
    snprintf(copy, sizeof(copy), "token %s", line);
    for (char *word = strtok_r(copy, " ", &save); word && argc < 31;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(in_dir("out"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        int error = open(in_dir("err"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        dup2(out, STDOUT_FILENO);
        dup2(error, STDERR_FILENO);
        status = token_command(argc, argv);
        fflush(NULL);
        _exit(status);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int runf(const char *format, const char *file)
{
    char line[400];
    snprintf(line, sizeof(line), format, file);
    return run(line);
}

static int find_in_file(const char *path, const char *token, struct identity *who)
{
    struct tokens *t;
    assert_int_equal(tokens_load(path, &t, &err), 0);
    int r = tokens_find(t, token, cay_wall_ms(), who, &err);
    tokens_free(t);
    return r;
}

TEST(add_list_remove)
{
    char file[100], token[64];
    struct identity who;
    struct stat st;
    snprintf(file, sizeof(file), "%s/sub/dir/tokens", dir);
    assert_int_equal(runf("ls --file %s", file), 0);
    assert_int_equal(runf("add ci --tenant acme --scopes read,exec --expires 30d --file %s", file),
                     0);
    assert_string_equal(get("err") + strcspn(get("err"), "\n") + 1, ""); /* one line */
    snprintf(token, sizeof(token), "%s", get("out"));
    assert_int_equal(strlen(token), 48);
    token[47] = 0;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(find_in_file(file, token, &who), 0);
    assert_string_equal(who.tenant, "acme");
    assert_int_equal(who.scopes, SCOPE_READ | SCOPE_EXEC);
    assert_null(strstr(get("sub/dir/tokens"), token));

    assert_int_equal(runf("add op --file=%s", file), 0);
    assert_non_null(strstr(get("err"), "no tenant"));
    assert_int_equal(runf("add ci --tenant acme --file %s", file), 1);
    assert_non_null(strstr(get("err"), "already"));
    assert_string_equal(get("out"), "");

    assert_int_equal(runf("ls --file %s", file), 0);
    assert_non_null(strstr(get("out"), "acme"));
    assert_null(strstr(get("out"), "sha256"));
    assert_int_equal(runf("ls --json --file %s", file), 0);
    assert_non_null(strstr(get("out"), "\"scopes\":[\"read\",\"exec\"]"));
    assert_non_null(strstr(get("out"), "\"tenant\":null"));
    assert_non_null(strstr(get("out"), "\"state\":\"valid\""));
    assert_null(strstr(get("out"), "sha256"));

    assert_int_equal(runf("rm c --file %s", file), 1); /* not a beginning of a name */
    assert_int_equal(runf("rm ci --file %s", file), 0);
    assert_int_equal(find_in_file(file, token, &who), -1);
    assert_non_null(strstr(get("sub/dir/tokens"), "\nop sha256:"));
    assert_non_null(strstr(get("sub/dir/tokens"), "# Tokens"));
    assert_int_equal(runf("rm ci --file %s", file), 1);
    assert_non_null(strstr(get("err"), "no token 'ci'"));
    assert_int_equal(access(in_dir("sub/dir/.tokens.new"), F_OK), -1);
}

TEST(what_people_wrote_stays)
{
    put("hand", "# mine\n\nold " HASH " tenant=a scopes=read   # not a comment here\n", 0600);
    assert_int_equal(runf("add new --tenant a --file %s", in_dir("hand")), 1); /* it is an error */
    put("hand", "# mine\n\nold " HASH " scopes=read  tenant=a", 0600);
    put(".hand.new", "left behind", 0644);
    assert_int_equal(runf("add new --tenant a --expires 2099-01-01 --file %s", in_dir("hand")), 0);
    assert_int_equal(strncmp(get("hand"), "# mine\n\nold " HASH " scopes=read  tenant=a\nnew ",
                             strlen("# mine\n\nold " HASH " scopes=read  tenant=a\nnew ")),
                     0);
    assert_non_null(strstr(get("hand"), "expires=2099-01-01T00:00:00Z"));
    assert_int_equal(runf("rm old --file %s", in_dir("hand")), 0);
    assert_int_equal(strncmp(get("hand"), "# mine\n\nnew ", 12), 0);
    assert_int_equal(chmod(in_dir("hand"), 0644), 0);
    assert_int_equal(runf("ls --file %s", in_dir("hand")), 1);
    assert_int_equal(runf("rm new --file %s", in_dir("hand")), 1);
    assert_non_null(strstr(get("err"), "chmod 600"));
}

TEST(bad_commands)
{
    static const struct {
        const char *line;
        int status;
        const char *part;
    } rows[] = {
        {"", 2, "Usage"},
        {"make x", 2, "unknown command"},
        {"add", 2, "NAME is missing"},
        {"add a b", 2, "too many"},
        {"ls x", 2, "too many"},
        {"ls --tenant x", 2, "unknown option"},
        {"add x --tenat y", 2, "did you mean '--tenant'"},
        {"add x --tenant POOL", 1, "bad tenant"},
        {"add x --tenant pool", 1, "bad tenant"},
        {"add x --scopes reed", 1, "did you mean 'read'"},
        {"add x --expires 2001-01-01", 1, "in the past"},
        {"add x --expires 99999999d", 1, "thousand years"},
        {"add x --expires soon", 1, "--expires"},
        {"add x/y", 1, "bad name"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char line[400];
        snprintf(line, sizeof(line), *rows[i].line ? "%s --file %s/none" : "%s", rows[i].line, dir);
        assert_int_equal(run(line), rows[i].status);
        if (!strstr(get("err"), rows[i].part))
            fail_msg("'%s' does not mention '%s'", get("err"), rows[i].part);
    }
    assert_int_equal(access(in_dir("none"), F_OK), -1);
    assert_int_equal(run("--help"), 0);
    assert_int_equal(run("add --help"), 0);
}

/* Writers at the same time: none of them is lost. */
TEST(concurrent_writers)
{
    enum { WRITERS = 8, EACH = 4 };
    pid_t pids[WRITERS];
    struct tokens *t;
    fflush(NULL);
    for (int i = 0; i < WRITERS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            int null = open("/dev/null", O_WRONLY | O_CLOEXEC), bad = 0;
            dup2(null, STDOUT_FILENO);
            dup2(null, STDERR_FILENO);
            for (int k = 0; k < EACH; k++) {
                char name[16];
                char path[CAY_MAX_PATH];
                snprintf(name, sizeof(name), "w%d-%d", i, k);
                snprintf(path, sizeof(path), "%s/many", dir);
                char *argv[] = {(char *)"token", (char *)"add", name, (char *)"--file", path, NULL};
                bad |= token_command(5, argv);
            }
            _exit(bad);
        }
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        assert_true(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    }
    assert_int_equal(tokens_load(in_dir("many"), &t, &err), 0);
    assert_int_equal(tokens_count(t), WRITERS * EACH);
    tokens_free(t);
}

/* ---- paths ----------------------------------------------------------------------------------- */

static int resolve(const char *path, char out[CAY_MAX_PATH])
{
    return operator_resolve(path, out, &err);
}

TEST(paths_are_resolved)
{
    char out[CAY_MAX_PATH];
    assert_int_equal(mkdir(in_dir("data"), 0755), 0);
    assert_int_equal(mkdir(in_dir("data/sub"), 0755), 0);
    assert_int_equal(symlink("/etc", in_dir("data/out")), 0);
    assert_int_equal(symlink("sub", in_dir("data/in")), 0);
    assert_int_equal(symlink("loop", in_dir("data/loop")), 0);
    put("data/file", "x", 0600);
    assert_int_equal(resolve(in_dir("data"), out), 0);
    assert_string_equal(out, in_dir("data"));
    assert_int_equal(resolve(in_dir("data//sub/./"), out), 0);
    assert_string_equal(out, in_dir("data/sub"));
    assert_int_equal(resolve(in_dir("data/in/.."), out), 0);
    assert_string_equal(out, in_dir("data"));
    assert_int_equal(resolve(in_dir("data/out"), out), 0);
    assert_string_equal(out, "/etc");
    assert_int_equal(resolve(in_dir("data/out/passwd"), out), 0);
    assert_string_equal(out, "/etc/passwd");
    assert_int_equal(resolve(in_dir("data/file"), out), 0);
    assert_string_equal(out, in_dir("data/file"));
    assert_int_equal(resolve("/", out), 0);
    assert_string_equal(out, "/");
    assert_int_equal(resolve("/../..", out), 0);
    assert_string_equal(out, "/");
    snprintf(out, sizeof(out), "untouched");
    assert_int_equal(resolve(in_dir("data/none"), out), -1);
    assert_int_equal(err.code, CAY_E_NOT_FOUND);
    assert_int_equal(resolve(in_dir("data/loop"), out), -1);
    assert_int_equal(resolve("data", out), -1);
    assert_int_equal(resolve("", out), -1);
    assert_string_equal(out, "untouched");
    /* Magic links: to a place it leads there, to something without a path nowhere. */
    assert_int_equal(resolve("/proc/self/root", out), 0);
    assert_string_equal(out, "/");
    int fd = open(in_dir("data/file"), O_RDONLY | O_CLOEXEC);
    char link[64];
    assert_int_equal(unlink(in_dir("data/file")), 0);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    assert_int_equal(resolve(link, out), -1);
    close(fd);
}

/* The whole way of a tenant's mount: what it resolves to is judged, and then put in its place. */
TEST(a_spec_is_resolved_and_judged)
{
    autoarena struct opt_arena arena = {0};
    char text[300];
    struct operator_policy *policy;
    struct operator_refusal why;
    struct resolved_spec resolved;
    assert_int_equal(mkdir(in_dir("ok"), 0755), 0);
    assert_int_equal(mkdir(in_dir("ok/img"), 0755), 0);
    assert_int_equal(mkdir(in_dir("other"), 0755), 0);
    assert_int_equal(symlink("../other", in_dir("ok/escape")), 0);
    assert_int_equal(symlink("ok", in_dir("alias")), 0);
    snprintf(text, sizeof(text), "[policy]\nmounts = %s/ok\nimages = dir:%s/ok/*, host\n", dir,
             dir);
    put("policy", text, 0644);
    assert_int_equal(operator_load(in_dir("policy"), &policy, &err), 0);

    struct cay_mount mounts[] = {{in_dir("alias/./img"), "/a", true}, {in_dir("ok"), "/b", true}};
    struct cay_spec spec = {.image = "host", .mounts = mounts, .n_mounts = 2};
    assert_int_equal(resolve_spec(&spec, &arena, &resolved, &err), 0);
    assert_int_equal(operator_check(policy, "t", &spec, &resolved.paths, &why, &err), 0);
    resolve_apply(&resolved, &spec);
    assert_string_equal(spec.mounts[0].source, in_dir("ok/img"));
    assert_string_equal(spec.mounts[0].target, "/a");
    assert_true(spec.mounts[0].read_only);
    assert_string_equal(spec.image, "host");

    static const char *const outside[] = {"ok/escape", "ok/../other", "ok/none", "ok/escape/none"};
    for (size_t i = 0; i < COUNT(outside); i++) {
        struct cay_mount bad = {in_dir(outside[i]), "/a", true};
        spec = (struct cay_spec){.mounts = &bad, .n_mounts = 1};
        assert_int_equal(resolve_spec(&spec, &arena, &resolved, &err), 0);
        assert_int_equal(operator_check(policy, "t", &spec, &resolved.paths, &why, &err), -1);
        assert_error(err, CAY_E_DENIED, "policy.mounts");
    }
    char image[200];
    snprintf(image, sizeof(image), "dir:%s/alias/img/", dir);
    spec = (struct cay_spec){.image = image};
    assert_int_equal(resolve_spec(&spec, &arena, &resolved, &err), 0);
    assert_int_equal(operator_check(policy, "t", &spec, &resolved.paths, &why, &err), 0);
    resolve_apply(&resolved, &spec);
    snprintf(text, sizeof(text), "dir:%s/ok/img", dir);
    assert_string_equal(spec.image, text);
    snprintf(image, sizeof(image), "dir:%s/ok/escape", dir);
    spec = (struct cay_spec){.image = image};
    assert_int_equal(resolve_spec(&spec, &arena, &resolved, &err), 0);
    assert_int_equal(operator_check(policy, "t", &spec, &resolved.paths, &why, &err), -1);
    operator_free(policy);
}

TEST(the_policys_file)
{
    struct operator_policy *policy = NULL;
    char text[200];
    assert_int_equal(operator_load(in_dir("no-policy"), &policy, &err), 0);
    assert_int_equal(operator_quota(policy, "t")->requests_max, 512);
    operator_free(policy);
    put("p", "[policy]\nmemory_max = 1G\n", 0644);
    assert_int_equal(operator_load(in_dir("p"), &policy, &err), 0);
    operator_free(policy);
    assert_int_equal(chmod(in_dir("p"), 0664), 0);
    assert_int_equal(operator_load(in_dir("p"), &policy, &err), -1);
    assert_error(err, CAY_E_DENIED, "chmod 644");
    put("p", "", 0644);
    assert_int_equal(operator_load(in_dir("p"), &policy, &err), 0);
    operator_free(policy);
    put("p", "[policy]\nmemry_max = 1G\n", 0644);
    assert_int_equal(operator_load(in_dir("p"), &policy, &err), -1);
    assert_error(err, CAY_E_INVALID, "/p:2: unknown key");
    /* A rule that could never match says so at once. */
    assert_int_equal(symlink("data", in_dir("way")), 0);
    snprintf(text, sizeof(text), "[tenant a]\nmounts = %s/way/sub\n", dir);
    put("p", text, 0644);
    assert_int_equal(operator_load(in_dir("p"), &policy, &err), -1);
    assert_error(err, CAY_E_INVALID, "/data/sub'");
    snprintf(text, sizeof(text), "[tenant a]\nmounts = %s/not/yet\n", dir);
    put("p", text, 0644);
    assert_int_equal(operator_load(in_dir("p"), &policy, &err), 0);
    operator_free(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines),
        cmocka_unit_test(what_is_printed_is_what_is_read),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(files_have_limits),
        cmocka_unit_test(times),
        cmocka_unit_test(finding),
        cmocka_unit_test(known_hash),
        cmocka_unit_test(scopes),
        cmocka_unit_test(only_private_files_are_read),
        cmocka_unit_test(refresh),
        cmocka_unit_test(add_list_remove),
        cmocka_unit_test(what_people_wrote_stays),
        cmocka_unit_test(bad_commands),
        cmocka_unit_test(concurrent_writers),
        cmocka_unit_test(paths_are_resolved),
        cmocka_unit_test(a_spec_is_resolved_and_judged),
        cmocka_unit_test(the_policys_file),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
