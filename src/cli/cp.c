/* SPDX-License-Identifier: Apache-2.0 */
/* cay cp: finds the direction and does tar streams itself; cp_in.c and cp_out.c walk the trees. */
#include "cli/cp.h"

#include "base/limits.h"
#include "base/parse.h"

#include <string.h>

_Static_assert(sizeof(((struct cp_path *)0)->text) == CAY_MAX_PATH, "a path is a path");

int cp_path_set(struct cp_path *path, const char *text, struct cay_error *err)
{
    size_t size = strlen(text);
    while (size > 1 && text[size - 1] == '/')
        size--;
    if (size >= sizeof(path->text))
        return cay_fail(err, CAY_E_INVALID, "path too long: %.100s...", text);
    memcpy(path->text, text, size);
    cp_path_cut(path, size);
    return 0;
}

void cp_path_cut(struct cp_path *path, size_t size)
{
    path->size = size;
    path->text[size] = 0;
}

int cp_path_add(struct cp_path *path, const char *name, size_t *before, struct cay_error *err)
{
    bool slash = path->size == 0 || path->text[path->size - 1] != '/';
    size_t size = strlen(name);
    if (path->size + slash + size >= sizeof(path->text))
        return cay_fail(err, CAY_E_INVALID, "path too long: %.100s.../%.100s", path->text, name);
    *before = path->size;
    if (slash)
        path->text[path->size++] = '/';
    memcpy(path->text + path->size, name, size);
    cp_path_cut(path, path->size + size);
    return 0;
}

void cp_base_name(const char *path, char name[static 256])
{
    size_t end = strlen(path);
    while (end && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && path[start - 1] != '/')
        start--;
    name[0] = 0;
    if (end - start >= 256)
        return;
    memcpy(name, path + start, end - start);
    name[end - start] = 0;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        name[0] = 0;
}

/* "ID:PATH"; false, and *path as it was, for a path on the host. "./a:b" is how to name a file with
 * a colon. */
static bool split_remote(const char *text, char id[static CAY_MAX_ID], const char **path)
{
    const char *colon = strchr(text, ':'), *checked;
    if (!colon || colon == text || (size_t)(colon - text) >= CAY_MAX_ID)
        return false;
    memcpy(id, text, (size_t)(colon - text));
    id[colon - text] = 0;
    if (parse_id(id, &checked, NULL) < 0)
        return false;
    *path = colon + 1;
    return true;
}

static int tar_stream(struct cli *cli, const char *path, bool in)
{
    struct cay_fs *fs = NULL;
    if (cay_fs_open(cli->sandbox, cli->user, &fs, &cli->err) < 0)
        return CLI_FAILED;
    struct cli_stream stream = {.fd = in ? STDIN_FILENO : STDOUT_FILENO};
    int r = in ? cay_fs_tar_in(fs, path, cli_source, &stream, &cli->err)
               : cay_fs_tar_out(fs, path, cli_sink, &stream, &cli->err);
    cay_fs_close(fs);
    if (stream.eno)
        return in ? cay_fail_errno(&cli->err, stream.eno, "cannot read standard input")
                  : cli_not_written(STDOUT_FILENO, stream.eno, &cli->err);
    return r;
}

int cmd_cp(struct cli *cli, const struct opt_args *args)
{
    char source_id[CAY_MAX_ID], target_id[CAY_MAX_ID];
    const char *source = args->operands[0], *target = args->operands[1];
    bool out = split_remote(source, source_id, &source),
         in = split_remote(target, target_id, &target);
    if (in == out)
        return cay_fail(&cli->err, CAY_E_INVALID,
                        "expected ID:PATH on one side, a path of the host or - on the other");
    const char *remote = in ? target : source, *local = in ? source : target;
    if (!*remote || !*local)
        return cay_fail(&cli->err, CAY_E_INVALID, "expected a path after '%s:'",
                        in ? target_id : source_id);
    if (cli_get(cli, in ? target_id : source_id) < 0)
        return CLI_FAILED;
    if (strcmp(local, "-") == 0)
        return tar_stream(cli, remote, in);
    return in ? cp_in(cli, local, remote) : cp_out(cli, remote, local);
}
