/* SPDX-License-Identifier: Apache-2.0 */
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

uint64_t cay_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t cay_after_ms(uint64_t ms)
{
    const uint64_t longest = 1ULL << 42;
    return cay_now_us() + CAY_MIN(ms, longest) * 1000;
}

uint64_t cay_wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

ssize_t cay_read_all(int fd, void *buffer, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, (char *)buffer + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int cay_write_all(int fd, const void *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = write(fd, (const char *)data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

ssize_t cay_read_file_at(int dir, const char *name, char *buffer, size_t size)
{
    /* A pipe in its place must not make us wait. */
    autofd int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return -1;
    ssize_t n = cay_read_all(fd, buffer, size);
    if (n < 0)
        return -1;
    if ((size_t)n == size) {
        errno = EFBIG;
        return -1;
    }
    buffer[n] = 0;
    return n;
}

int cay_write_file_at(int dir, const char *name, const char *text)
{
    autofd int fd = openat(dir, name, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -1;
    size_t size = strlen(text);
    ssize_t n = write(fd, text, size);
    if (n < 0)
        return -1;
    if ((size_t)n != size) {
        errno = EIO;
        return -1;
    }
    return 0;
}

int cay_mkdir_all(const char *path, mode_t mode)
{
    if (mkdir(path, mode) == 0 || errno == EEXIST)
        return 0;
    if (errno != ENOENT)
        return -1;
    autofree char *parent = strdup(path);
    if (!parent)
        return -1;
    char *slash = strrchr(parent, '/');
    if (!slash || slash == parent) {
        errno = ENOENT;
        return -1;
    }
    *slash = 0;
    if (cay_mkdir_all(parent, mode) < 0)
        return -1;
    return mkdir(path, mode) == 0 || errno == EEXIST ? 0 : -1;
}

static int remove_children(int dir, dev_t device)
{
    DIR *stream = fdopendir(dir);
    if (!stream) {
        close(dir);
        return -1;
    }
    int result = 0;
    for (struct dirent *e; (e = readdir(stream));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(stream), e->d_name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM) {
            result = -1;
            continue;
        }
        struct stat st;
        int child =
            openat(dirfd(stream), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0 || fstat(child, &st) < 0 || st.st_dev != device) {
            if (child >= 0)
                close(child);
            result = -1;
            continue;
        }
        if (remove_children(child, device) < 0 ||
            unlinkat(dirfd(stream), e->d_name, AT_REMOVEDIR) < 0)
            result = -1;
    }
    closedir(stream);
    return result;
}

int cay_remove_tree_at(int dir, const char *name)
{
    struct stat st;
    int top = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (top < 0) {
        if (errno == ENOENT)
            return 0;
        return errno == ENOTDIR || errno == ELOOP ? unlinkat(dir, name, 0) : -1;
    }
    if (fstat(top, &st) < 0) {
        close(top);
        return -1;
    }
    if (remove_children(top, st.st_dev) < 0)
        return -1;
    return unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT ? 0 : -1;
}

void cay_random(void *buffer, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = getrandom((char *)buffer + done, size - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (errno != EINTR)
            abort();
    }
}

uint32_t cay_crc32(const void *data, size_t size)
{
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

char cay_type_letter(mode_t mode)
{
    static const struct {
        mode_t type;
        char letter;
    } letters[] = {{S_IFREG, 'f'},  {S_IFDIR, 'd'}, {S_IFLNK, 'l'}, {S_IFIFO, 'p'},
                   {S_IFSOCK, 's'}, {S_IFCHR, 'c'}, {S_IFBLK, 'b'}};
    for (size_t i = 0; i < CAY_COUNT(letters); i++)
        if ((mode & S_IFMT) == letters[i].type)
            return letters[i].letter;
    return '?';
}
