/* A disk that becomes full: the n-th call that needs room below some folders fails, and from then on
 * every one that needs more room does, in all processes that share the count. Renames and syncs fail
 * only when they are the n-th: a full disk still moves what it has.
 *
 * Or a disk that is broken in one place: the n-th call fails, be it of those or one that reads, and
 * no other. Or no disk is at fault: what is about to rename for the n-th time is killed.
 *
 * FULL_DISK_UNDER: folders, separated by ':'.  FULL_DISK_COUNT: a file of four 32-bit
 * numbers: calls so far, which one fails (0: none), with which error, and what happens: 0, it is full;
 * 1, it is broken; 2, a kill.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define real_mmap REAL(mmap)

static uint32_t *state;
static const char *under;

__attribute__((constructor)) void epctx_full_disk_begin(void) {
    const char *file = getenv("FULL_DISK_COUNT");
    under = getenv("FULL_DISK_UNDER");
    if (!file || !under) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR);
    if (fd < 0) return;
    void *mapped = real_mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped != MAP_FAILED) state = mapped;
}

static int below(const char *path) {
    const char *at = under;
    while (at && *at) {
        size_t length = strcspn(at, ":");
        if (!strncmp(path, at, length) && (path[length] == '/' || !path[length])) return 1;
        at += length + (at[length] == ':');
    }
    return 0;
}

static int absolute(int folder, const char *path, char *found) {
    char link[64];
    if (path[0] == '/') return snprintf(found, PATH_MAX, "%s", path) < PATH_MAX;
    if (folder == AT_FDCWD) {
        if (!getcwd(found, PATH_MAX)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t n = readlink(link, found, PATH_MAX - 1);
        if (n < 0) return 0;
        found[n] = 0;
    }
    size_t have = strlen(found);
    return snprintf(found + have, PATH_MAX - have, "/%s", path) < (int)(PATH_MAX - have);
}

enum what { SYNCS, RENAMES, NEEDS_ROOM, READS };
enum fault { FULL, BROKEN, KILLED };

static int fails(enum what what) {
    int broken = state[3] == BROKEN, killed = state[3] == KILLED;
    if ((what == READS && !broken) || (what != RENAMES && killed)) return 0;
    uint32_t number = __atomic_add_fetch(&state[0], 1, __ATOMIC_SEQ_CST);
    if (!state[1] || number < state[1]) return 0;
    if (number > state[1] && (broken || what != NEEDS_ROOM)) return 0;
    if (killed) raise(SIGKILL);
    errno = (int)state[2];
    return 1;
}

static int refused_path(int folder, const char *path, enum what what) {
    char found[PATH_MAX];
    int before = errno;
    if (!state || !path || !absolute(folder, path, found) || !below(found)) {
        errno = before;
        return 0;
    }
    errno = before;
    return fails(what);
}

static int refused_fd(int fd, enum what what) {
    char link[64], found[PATH_MAX];
    int before = errno;
    if (!state) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, found, sizeof found - 1);
    errno = before;
    if (n < 0) return 0;
    found[n] = 0;
    return below(found) && fails(what);
}

static int creates(int folder, const char *path, int flags) {
    return (flags & O_CREAT) && faccessat(folder, path, F_OK, 0) != 0;
}

#define OPENS(name)                                                         \
    int name(const char *path, int flags, ...) {                            \
        va_list rest; va_start(rest, flags);                                \
        mode_t mode = va_arg(rest, mode_t); va_end(rest);                   \
        int before = errno;                                                 \
        enum what what = creates(AT_FDCWD, path, flags) ? NEEDS_ROOM : READS; \
        if (refused_path(AT_FDCWD, path, what)) return -1;                  \
        errno = before;                                                     \
        return REAL(name)(path, flags, mode);                               \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                      \
    int name(int folder, const char *path, int flags, ...) {                \
        va_list rest; va_start(rest, flags);                                \
        mode_t mode = va_arg(rest, mode_t); va_end(rest);                   \
        int before = errno;                                                 \
        enum what what = creates(folder, path, flags) ? NEEDS_ROOM : READS; \
        if (refused_path(folder, path, what)) return -1;                    \
        errno = before;                                                     \
        return REAL(name)(folder, path, flags, mode);                       \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define WRITES(type, name, fd, arguments, ...)                              \
    type name arguments { return refused_fd(fd, NEEDS_ROOM) ? (type)-1 : REAL(name)(__VA_ARGS__); }
WRITES(ssize_t, write, fd, (int fd, const void *data, size_t size), fd, data, size)
WRITES(ssize_t, pwrite, fd, (int fd, const void *data, size_t size, off_t at), fd, data, size, at)
WRITES(ssize_t, pwrite64, fd, (int fd, const void *data, size_t size, off64_t at), fd, data, size, at)
WRITES(ssize_t, writev, fd, (int fd, const struct iovec *data, int count), fd, data, count)
WRITES(ssize_t, copy_file_range, to,
       (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
       from, a, to, b, size, flags)
WRITES(int, ftruncate, fd, (int fd, off_t size), fd, size)
WRITES(int, ftruncate64, fd, (int fd, off64_t size), fd, size)

#define READ(type, name, failed, fd, arguments, ...)                        \
    type name arguments { return refused_fd(fd, READS) ? failed : REAL(name)(__VA_ARGS__); }
READ(ssize_t, read, -1, fd, (int fd, void *data, size_t size), fd, data, size)
READ(ssize_t, pread, -1, fd, (int fd, void *data, size_t size, off_t at), fd, data, size, at)
READ(ssize_t, pread64, -1, fd, (int fd, void *data, size_t size, off64_t at), fd, data, size, at)
READ(ssize_t, readv, -1, fd, (int fd, const struct iovec *data, int count), fd, data, count)
READ(void *, mmap, MAP_FAILED, fd, (void *at, size_t size, int use, int flags, int fd, off_t from),
     at, size, use, flags, fd, from)
READ(void *, mmap64, MAP_FAILED, fd,
     (void *at, size_t size, int use, int flags, int fd, off64_t from),
     at, size, use, flags, fd, from)

int fsync(int fd) { return refused_fd(fd, SYNCS) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return refused_fd(fd, SYNCS) ? -1 : REAL(fdatasync)(fd); }

int mkdir(const char *path, mode_t mode) {
    int before = errno;
    if (access(path, F_OK) && refused_path(AT_FDCWD, path, NEEDS_ROOM)) return -1;
    errno = before;
    return REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to) {
    return refused_path(AT_FDCWD, to, RENAMES) ? -1 : REAL(rename)(from, to);
}

int renameat(int a, const char *from, int b, const char *to) {
    return refused_path(b, to, RENAMES) ? -1 : REAL(renameat)(a, from, b, to);
}
