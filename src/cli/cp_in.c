/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cay cp FILE ID:PATH: walks the host's tree by descriptors and writes it into the sandbox, file by
 * file, in constant memory. Links are copied as links; what is neither file, directory nor link is
 * skipped.
 */
#include "cli/cp.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct copy {
    struct cay_fs *fs;
    struct cp_path remote;
    struct cp_path local; /* for messages only */
    struct cay_error *err;
};

static int put_file(struct copy *c, int fd, mode_t mode)
{
    struct cli_stream in = {.fd = fd};
    int r = cay_fs_write(c->fs, c->remote.text, CAY_MODE_GIVEN | (mode & 0777), cli_source, &in,
                         c->err);
    return in.eno ? cay_fail_errno(c->err, in.eno, "cannot read %s", c->local.text) : r;
}

/* ---- links: the file calls have none, but a tar stream of one entry does --------------------- */

struct tar_bytes {
    char data[16384];
    size_t size, sent;
};

static ssize_t tar_source(void *buffer, size_t size, void *data)
{
    struct tar_bytes *tar = data;
    size_t n = CAY_MIN(size, tar->size - tar->sent);
    memcpy(buffer, tar->data + tar->sent, n);
    tar->sent += n;
    return (ssize_t)n;
}

/* One ustar header of 512 bytes; names longer than its fields are cut, a pax header before it has
 * them. */
static void tar_header(struct tar_bytes *tar, char type, const char *name, const char *target,
                       size_t size)
{
    char *h = tar->data + tar->size;
    unsigned sum = 0;
    memset(h, 0, 512);
    memcpy(h, name, strnlen(name, 100));
    memcpy(h + 100, "0000777", 8);
    memcpy(h + 108, "0000000", 8);
    memcpy(h + 116, "0000000", 8);
    snprintf(h + 124, 12, "%011lo", (unsigned long)size);
    memcpy(h + 136, "00000000000", 12);
    memset(h + 148, ' ', 8);
    h[156] = type;
    memcpy(h + 157, target, strnlen(target, 100));
    memcpy(h + 257, "ustar\00000", 8);
    for (size_t i = 0; i < 512; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    tar->size += 512;
}

/* "LENGTH key=value\n", where LENGTH counts itself. */
static size_t pax_record(char *out, size_t room, const char *key, const char *value)
{
    size_t body = strlen(key) + strlen(value) + 3, total = body + 1;
    while (total != body + (size_t)snprintf(NULL, 0, "%zu", total))
        total = body + (size_t)snprintf(NULL, 0, "%zu", total);
    snprintf(out, room, "%zu %s=%s\n", total, key, value);
    return total;
}

static int put_link(struct copy *c, const char *parent, const char *name, const char *target)
{
    struct tar_bytes tar;
    tar.size = tar.sent = 0;
    if (strlen(name) > 100 || strlen(target) > 100) {
        char records[5120];
        size_t n = pax_record(records, sizeof(records), "path", name);
        n += pax_record(records + n, sizeof(records) - n, "linkpath", target);
        tar_header(&tar, 'x', "pax", "", n);
        memset(tar.data + tar.size, 0, (n + 511) / 512 * 512);
        memcpy(tar.data + tar.size, records, n);
        tar.size += (n + 511) / 512 * 512;
    }
    tar_header(&tar, '2', name, target, 0);
    memset(tar.data + tar.size, 0, 1024);
    tar.size += 1024;
    return cay_fs_tar_in(c->fs, parent, tar_source, &tar, c->err);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static int put_tree(struct copy *c, int dir);

static int put_entry(struct copy *c, int dir, const char *name, const char *parent)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : cay_fail_errno(c->err, errno, "cannot read %s", c->local.text);
    if (S_ISLNK(st.st_mode)) {
        char target[4096];
        ssize_t n = readlinkat(dir, name, target, sizeof(target) - 1);
        if (n < 0)
            return cay_fail_errno(c->err, errno, "cannot read %s", c->local.text);
        target[n] = 0;
        return put_link(c, parent, name, target);
    }
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        cli_note("skipped %s: neither file, directory nor link", c->local.text);
        return 0;
    }
    /* Not following and not blocking: it may have become a link or a pipe since. */
    autofd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(c->err, errno, "cannot open %s", c->local.text);
    if (S_ISREG(st.st_mode))
        return put_file(c, fd, st.st_mode);
    if (!S_ISDIR(st.st_mode))
        return cay_fail(c->err, CAY_E_CONFLICT, "%s changed while it was copied", c->local.text);
    if (cay_fs_mkdir(c->fs, c->remote.text, (st.st_mode & 0777) | 0700, c->err) < 0)
        return -1;
    return put_tree(c, fd);
}

/* All that is in `dir` (borrowed), to c->remote. */
static int put_tree(struct copy *c, int dir)
{
    int own = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = own < 0 ? NULL : fdopendir(own);
    if (!stream) {
        close_fd(&own);
        return cay_fail_errno(c->err, errno, "cannot read the directory %s", c->local.text);
    }
    autofree char *parent = strdup(c->remote.text);
    int r = parent ? 0 : cay_fail(c->err, CAY_E_NO_SPACE, "out of memory");
    for (struct dirent *e; r == 0 && (e = readdir(stream));) {
        size_t remote, local;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (cp_path_add(&c->remote, e->d_name, &remote, c->err) < 0 ||
            cp_path_add(&c->local, e->d_name, &local, c->err) < 0) {
            r = -1;
            break;
        }
        r = put_entry(c, dirfd(stream), e->d_name, parent);
        cp_path_cut(&c->remote, remote);
        cp_path_cut(&c->local, local);
    }
    closedir(stream);
    return r;
}

static int note_type(const struct cay_stat *st, void *data)
{
    *(char *)data = st->type;
    return 0;
}

int cp_in(struct cli *cli, const char *local, const char *remote)
{
    struct copy c = {.err = &cli->err};
    struct stat st;
    char name[256], type = 0;
    size_t ignored;
    /* What the user named is followed and may block, as with cp(1). */
    autofd int fd = open(local, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return cay_fail_errno(&cli->err, errno, "cannot open %s", local);
    if (cp_path_set(&c.remote, remote, &cli->err) < 0 ||
        cp_path_set(&c.local, local, &cli->err) < 0 ||
        cay_fs_open(cli->sandbox, cli->user, &c.fs, &cli->err) < 0)
        return CLI_FAILED;
    cp_base_name(local, name);
    int r = cay_fs_stat(c.fs, c.remote.text, true, note_type, &type, &cli->err);
    bool missing = r < 0 && cli->err.code == CAY_E_NOT_FOUND;
    bool into =
        type == 'd' || (missing && remote[strlen(remote) - 1] == '/' && !S_ISDIR(st.st_mode));
    if (r < 0 && missing)
        r = 0;
    if (r == 0 && into && name[0])
        r = cp_path_add(&c.remote, name, &ignored, &cli->err);
    if (r == 0 && S_ISDIR(st.st_mode)) {
        r = cay_fs_mkdir(c.fs, c.remote.text, (st.st_mode & 0777) | 0700, &cli->err);
        r = r < 0 ? r : put_tree(&c, fd);
    } else if (r == 0) {
        r = put_file(&c, fd, S_ISREG(st.st_mode) ? st.st_mode : 0644);
    }
    cay_fs_close(c.fs);
    return r;
}
