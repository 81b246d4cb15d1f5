/* SPDX-License-Identifier: Apache-2.0 */
#include "sandbox/config.h"

#include "base/err.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static int add_alias(const char *key, const char *value, void *data, struct cay_error *err)
{
    struct config *config = data;
    size_t n = strlen(key), m = strlen(value);
    char *pair = opt_alloc(&config->arena, n + m + 2);
    if (!pair)
        return cay_fail(err, CAY_E_NO_SPACE, "out of memory");
    memcpy(pair, key, n);
    pair[n] = '=';
    memcpy(pair + n + 1, value, m + 1);
    return opt_append(&config->arena, &config->aliases, pair, OPT_MAX_LIST, err);
}

int config_load(const struct cay *cay, struct config *out, struct cay_error *err)
{
    autofree char *text = NULL;
    struct config config = {0};
    autofd int fd = open(cay->config_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && !cay->config_named && (errno == ENOENT || errno == ENOTDIR)) {
        *out = config;
        return 0;
    }
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(err, errno, "cannot read the config file %s", cay->config_path);
    if (!S_ISREG(st.st_mode) || st.st_size > CAY_MAX_CONFIG)
        return cay_fail(err, CAY_E_INVALID, "%s is no file, or larger than %u bytes",
                        cay->config_path, CAY_MAX_CONFIG);
    text = malloc((size_t)st.st_size + 1);
    ssize_t n = text ? cay_read_all(fd, text, (size_t)st.st_size) : -1;
    if (n < 0)
        return cay_fail_errno(err, errno, "cannot read %s", cay->config_path);
    const struct opt_section sections[] = {
        {.name = "image", .each = add_alias, .data = &config},
        /* The first option is the id, which cannot have a default. */
        {.name = "defaults", .group = {opt_spec + 1, opt_spec_count - 1, &config.defaults}},
        {0},
    };
    if (opt_config(&config.arena, cay->config_path, text, (size_t)n, sections, err) < 0) {
        opt_arena_done(&config.arena);
        return -1;
    }
    *out = config;
    return 0;
}

void config_done(struct config *config)
{
    opt_arena_done(&config->arena);
    *config = (struct config){0};
}

const char *config_image(const struct config *config, const char *name)
{
    size_t n = strlen(name);
    for (const char *const *a = config->aliases; a && *a; a++)
        if (strncmp(*a, name, n) == 0 && (*a)[n] == '=')
            return *a + n + 1;
    return name;
}

void config_apply(const struct config *config, struct cay_spec *spec)
{
    const struct cay_spec *from = &config->defaults;
#define DEFAULT(member) \
    if (!spec->member)  \
    spec->member = from->member
    DEFAULT(image);
    DEFAULT(user);
    DEFAULT(cwd);
    DEFAULT(network);
    DEFAULT(profile);
    DEFAULT(memory);
    DEFAULT(cpus);
    DEFAULT(pids);
    DEFAULT(disk);
    DEFAULT(inodes);
    DEFAULT(fds);
    DEFAULT(output);
    DEFAULT(ttl_ms);
    DEFAULT(idle_ms);
    DEFAULT(env);
    DEFAULT(labels);
#undef DEFAULT
    /* What a tenant mounts is judged by the operator policy before it comes here: nothing is added
     * behind its back. */
    bool tenant = spec->id && strchr(spec->id, '~');
    if (!spec->n_mounts && !tenant) {
        spec->mounts = from->mounts;
        spec->n_mounts = from->n_mounts;
    }
}
