/* Fault injection for everything a process writes and reads below one directory.
 *
 * Loaded with LD_PRELOAD, asleep until fi_arm() or fi_record() is called (through ctypes, in a forked child). From then
 * on every call of the armed classes below the root is numbered by one counter, in order, across threads; the k-th one
 * can be made to fail, fall short, lie, or be the last thing the process does. In record mode each call that changes
 * something is also appended, with its data, to a trace file outside the root, from which power.py rebuilds what a power
 * cut could have left behind.
 *
 * Where a descriptor points is asked of /proc at each call: that follows dup, rename and unlink without bookkeeping of
 * our own. Not seen: stdio (fopen/fwrite), io_uring, direct system calls, and loads and stores through a mapping; a
 * writable shared mapping is written to the trace, so that the replay can refuse what it cannot model.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Keep in step with library.py. */
enum action { NOTHING, KILL, KILL_AFTER, TORN, SHORT, ERROR, LIE, STOP };
enum class {
    C_OPEN = 1,
    C_WRITE = 2,
    C_SIZE = 4,
    C_SYNC = 8,
    C_NAME = 16,
    C_REMOVE = 32,
    C_MKDIR = 64,
    C_REOPEN = 128,
    C_READ = 256,
    C_READ_OPEN = 512,
    C_LIST = 1024,
    C_LOOK = 2048,
    C_MAP = 4096,
    C_LOCK = 8192,
};
/* ... and with trace.py. */
enum kind {
    K_OPEN = 1,
    K_WRITE,
    K_SIZE,
    K_ALLOCATE,
    K_SYNC,
    K_RENAME,
    K_LINK,
    K_UNLINK,
    K_MKDIR,
    K_RMDIR,
    K_SYMLINK,
    K_MARK,
    K_MAP,
    K_RANGE,
    K_FIRED,
};
enum verdict { GO, FAIL, HALF, SKIP };

/* Keep in step with trace.py: little-endian on every machine we run on, no padding. */
struct record {
    uint32_t magic, kind;
    int64_t result, error, inode, a, b;
    uint32_t path_length, other_length;
    uint64_t data_length;
};
#define MAGIC 0x52544946u /* "FITR" */

struct call {
    const char *name;
    enum class class;
    enum kind kind;
    int dies_after;
    char path[PATH_MAX], other[PATH_MAX];
    int64_t a, b;
};

static struct {
    int active;
    char root[PATH_MAX];
    size_t root_length;
    long at, count;
    int action, error, forever, mask, fired;
    int report, trace, resume, waiting;
    unsigned seed;
} fi = {.report = -1, .trace = -1, .resume = -1, .waiting = -1};

/* One call at a time: the counter, the trace and what really happened stay in the same order. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void lock_all(void) { pthread_mutex_lock(&lock); }
static void unlock_all(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void at_fork(void) { pthread_atfork(lock_all, unlock_all, unlock_all); }

#define REAL(type, symbol, ...)                      \
    static type (*real)(__VA_ARGS__);                \
    if (!real)                                       \
        real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #symbol)

static ssize_t plain_write(int fd, const void *data, size_t length) {
    REAL(ssize_t, write, int, const void *, size_t);
    return real(fd, data, length);
}
static ssize_t plain_writev(int fd, const struct iovec *parts, int n) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    return real(fd, parts, n);
}
static ssize_t plain_pwritev(int fd, const struct iovec *parts, int n, off64_t offset) {
    REAL(ssize_t, pwritev64, int, const struct iovec *, int, off64_t);
    return real(fd, parts, n, offset);
}

static int plain_flock(int fd, int operation) {
    REAL(int, flock, int, int);
    return real(fd, operation);
}
static ssize_t plain_readv(int fd, const struct iovec *parts, int n) {
    REAL(ssize_t, readv, int, const struct iovec *, int);
    return real(fd, parts, n);
}
static ssize_t plain_preadv(int fd, const struct iovec *parts, int n, off64_t offset) {
    REAL(ssize_t, preadv64, int, const struct iovec *, int, off64_t);
    return real(fd, parts, n, offset);
}
/* In older C libraries stat and its kin are no functions that one could stand in front of: there they are not seen. */
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
#define SEES_STAT 1
static int plain_fstat(int fd, struct stat64 *st) {
    REAL(int, fstat64, int, struct stat64 *);
    return real(fd, st);
}
static int plain_lstat(const char *path, struct stat64 *st) {
    REAL(int, lstat64, const char *, struct stat64 *);
    return real(path, st);
}
#else
#define SEES_STAT 0
#define plain_fstat fstat64
#define plain_lstat lstat64
#endif

/* ---- paths ---- */

static int under_root(const char *path) {
    return !strncmp(path, fi.root, fi.root_length) && (path[fi.root_length] == '/' || path[fi.root_length] == 0);
}

static int descriptor_path(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n < 0)
        return 0;
    out[n] = 0;
    return 1;
}

/* Text only: the harness hands out real paths and the store is not expected to work through links. */
static void collapse(char *path) {
    char *to = path;
    for (char *from = path; *from;) {
        while (*from == '/')
            from++;
        size_t n = strcspn(from, "/");
        if (n == 2 && from[0] == '.' && from[1] == '.') {
            while (to > path && *--to != '/')
                ;
        } else if (n && !(n == 1 && *from == '.')) {
            *to++ = '/';
            memmove(to, from, n);
            to += n;
        }
        from += n;
    }
    if (to == path)
        *to++ = '/';
    *to = 0;
}

static int absolute(int directory, const char *path, char *out) {
    size_t n = 0;
    if (!path)
        return 0;
    if (path[0] != '/') {
        if (directory == AT_FDCWD ? !getcwd(out, PATH_MAX) : !descriptor_path(directory, out))
            return 0;
        n = strlen(out);
        if (n + 1 < PATH_MAX)
            out[n++] = '/';
    }
    if (n + strlen(path) + 1 > PATH_MAX)
        return 0;
    strcpy(out + n, path);
    collapse(out);
    return 1;
}

static int watching(void) { return __atomic_load_n(&fi.active, __ATOMIC_ACQUIRE); }

static int watched_fd(int fd, struct call *call) {
    int kept = errno;
    int yes = watching() && descriptor_path(fd, call->path) && under_root(call->path);
    errno = kept;
    return yes;
}
static int watched_path(int directory, const char *path, struct call *call) {
    int kept = errno;
    int yes = watching() && absolute(directory, path, call->path) && under_root(call->path);
    errno = kept;
    return yes;
}
static int watched_pair(int from, const char *path, int to, const char *other, struct call *call) {
    int kept = errno;
    int yes = watching() && absolute(from, path, call->path) && absolute(to, other, call->other) &&
              (under_root(call->path) || under_root(call->other));
    errno = kept;
    return yes;
}

/* ---- the counter, and what happens at the k-th call ---- */

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) /* with the lock held, so that no other thread gets a call in before the signal lands */
        pause();
}

/* Several processes may write one trace: a call and its record are one step for all of them, or the trace would tell of
 * things in another order than they happened in. */
static void enter(void) {
    lock_all();
    while (fi.trace >= 0 && plain_flock(fi.trace, LOCK_EX) && errno == EINTR)
        ;
}
static void leave(void) {
    if (fi.trace >= 0)
        plain_flock(fi.trace, LOCK_UN);
    unlock_all();
}

static const char *inside(const char *path) {
    if (!path[0] || !under_root(path))
        return path;
    return path[fi.root_length] ? path + fi.root_length + 1 : ".";
}

static void report(const char *word, long number, const struct call *call) {
    char line[2 * PATH_MAX + 128];
    int n = snprintf(line, sizeof line, "%s %ld %s %s%s%s\n", word, number, call->name, inside(call->path),
                     call->other[0] ? " -> " : "", inside(call->other));
    if (fi.report >= 0 && plain_write(fi.report, line, n) < 0)
        die();
}

/* Stand still until somebody who was told of the call writes a byte. Other processes may go on meanwhile. */
static void stand_still(void) {
    char byte;
    struct iovec part = {&byte, 1};
    if (fi.resume < 0)
        return;
    if (fi.trace >= 0)
        plain_flock(fi.trace, LOCK_UN);
    while (plain_readv(fi.resume, &part, 1) < 0 && errno == EINTR)
        ;
    while (fi.trace >= 0 && plain_flock(fi.trace, LOCK_EX) && errno == EINTR)
        ;
}

/* A trace with a hole would prove nothing: rather no process than such a trace. */
static void append(const void *data, size_t length) {
    for (const char *from = data; length;) {
        ssize_t done = plain_write(fi.trace, from, length);
        if (done <= 0)
            die();
        from += done;
        length -= done;
    }
}

static void trace(const struct call *call, enum kind kind, int64_t result, int error, int64_t inode,
                  const struct iovec *data, int n) {
    if (fi.trace < 0)
        return;
    struct record record = {
        .magic = MAGIC,
        .kind = kind,
        .result = result,
        .error = error,
        .inode = inode,
        .a = call->a,
        .b = call->b,
        .path_length = (uint32_t)strlen(call->path),
        .other_length = (uint32_t)strlen(call->other),
        .data_length = result > 0 && data ? (uint64_t)result : 0,
    };
    append(&record, sizeof record);
    append(call->path, record.path_length);
    append(call->other, record.other_length);
    uint64_t left = record.data_length;
    for (int i = 0; i < n && left; i++) {
        size_t part = data[i].iov_len < left ? data[i].iov_len : left;
        append(data[i].iov_base, part);
        left -= part;
    }
}

static enum verdict begin(struct call *call) {
    enter();
    if (!fi.action || !(call->class & fi.mask))
        return GO;
    long number = ++fi.count;
    if (fi.forever ? number < fi.at : number != fi.at)
        return GO;
    if (!fi.fired++) {
        report("fired", number, call);
        trace(call, K_FIRED, 0, 0, -1, NULL, 0);
        stand_still();
    }
    switch (fi.action) {
    case KILL:
        die();
        return GO;
    case KILL_AFTER:
        call->dies_after = 1;
        return GO;
    case TORN:
        call->dies_after = 1;
        return HALF;
    case SHORT:
        return HALF;
    case ERROR:
        return FAIL;
    case STOP:
        return GO;
    default:
        return SKIP;
    }
}

/* Ends a call: into the trace, perhaps out of this life, and back with its result and errno. */
static int64_t end(struct call *call, int64_t result, int error, int64_t inode, const struct iovec *data, int n) {
    trace(call, call->kind, result, error, inode, data, n);
    if (call->dies_after)
        die();
    leave();
    errno = error;
    return result;
}

static int64_t inode_of(int fd) {
    struct stat64 st;
    return plain_fstat(fd, &st) ? -1 : (int64_t)st.st_ino;
}
static int64_t inode_at(const char *path) {
    struct stat64 st;
    return plain_lstat(path, &st) ? -1 : (int64_t)st.st_ino;
}

/* Calls that change nothing are numbered and may fail like the others, and are in no trace. They are made outside of the
 * lock: one that waits, for another process or another thread, must not keep everybody waiting. */
static int armed(enum class class) { return watching() && (fi.mask & class); }

static enum verdict decide(struct call *call) {
    int kept = errno;
    enum verdict verdict = begin(call);
    leave();
    errno = verdict == FAIL ? fi.error : kept;
    return verdict;
}

/* The whole life of a call without data: decide, do, record. RUN is evaluated only when the call is to happen. */
#define SIMPLE(call, run, inode)                                                             \
    do {                                                                                     \
        int kept = errno;                                                                    \
        enum verdict verdict = begin(&call);                                                 \
        int64_t result = -1;                                                                 \
        int error = fi.error;                                                                \
        if (verdict == SKIP) {                                                               \
            result = 0, error = kept;                                                        \
        } else if (verdict != FAIL) {                                                        \
            errno = kept;                                                                    \
            result = (run);                                                                  \
            error = errno;                                                                   \
        }                                                                                    \
        int64_t number = inode;                                                              \
        return end(&call, result, error, number, NULL, 0);                                   \
    } while (0)

/* ---- opening ---- */

static int opened(struct call *call, int (*real)(int, const char *, int, ...), int directory, const char *path,
                  int flags, mode_t mode) {
    int kept = errno;
    call->a = flags;
    call->b = inode_at(call->path) >= 0; /* was it there before? */
    if (call->b && !(flags & O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE)
        call->class = C_REOPEN; /* changes nothing: a full disk has no reason to refuse it */
    enum verdict verdict = begin(call);
    int fd = -1, error = fi.error;
    if (verdict != FAIL) {
        errno = kept;
        fd = real(directory, path, flags, mode);
        error = errno;
    }
    return (int)end(call, fd, error, fd >= 0 ? inode_of(fd) : -1, NULL, 0);
}

static int writes(int flags) { return (flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE; }

/* What stands in for /dev/urandom, from which SQLite draws: the same bytes for the same seed. */
static int seeded_bytes(void) {
    unsigned char bytes[4096];
    uint64_t state = fi.seed;
    for (size_t i = 0; i < sizeof bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (unsigned char)(state >> 56);
    }
    int fd = memfd_create("seeded", MFD_CLOEXEC);
    if (fd >= 0 && (plain_write(fd, bytes, sizeof bytes) != (ssize_t)sizeof bytes || lseek(fd, 0, SEEK_SET)))
        abort();
    return fd;
}

#define OPEN_BODY(at, directory)                                                 \
    mode_t mode = 0;                                                             \
    if (fi.seed && path && !strcmp(path, "/dev/urandom"))                        \
        return seeded_bytes();                                                   \
    if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {                 \
        va_list rest;                                                            \
        va_start(rest, flags);                                                   \
        mode = va_arg(rest, mode_t);                                             \
        va_end(rest);                                                            \
    }                                                                            \
    REAL(int, at, int, const char *, int, ...);                                  \
    struct call call = {.name = "open", .class = C_OPEN, .kind = K_OPEN};        \
    if (!writes(flags) && armed(C_READ_OPEN)) {                                  \
        call.class = C_READ_OPEN;                                                \
        if (watched_path(directory, path, &call) && decide(&call) == FAIL)       \
            return -1;                                                           \
    }                                                                            \
    if (!writes(flags) || !watched_path(directory, path, &call))                 \
        return real(directory, path, flags, mode);                               \
    return opened(&call, real, directory, path, flags, mode)

int open(const char *path, int flags, ...) { OPEN_BODY(openat, AT_FDCWD); }
int open64(const char *path, int flags, ...) { OPEN_BODY(openat64, AT_FDCWD); }
int openat(int directory, const char *path, int flags, ...) { OPEN_BODY(openat, directory); }
int openat64(int directory, const char *path, int flags, ...) { OPEN_BODY(openat64, directory); }
int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* ---- writing ---- */

#define HERE (-1) /* write at the descriptor's own position */

/* The first `length` bytes of some parts, as parts of their own; how many these are. */
static int shortened(struct iovec *cut, const struct iovec *parts, int n, size_t length) {
    int used = 0;
    for (; used < n && length; used++) {
        cut[used] = parts[used];
        if (cut[used].iov_len > length)
            cut[used].iov_len = length;
        length -= cut[used].iov_len;
    }
    return used;
}

static ssize_t written(struct call *call, int fd, const struct iovec *parts, int n, off64_t offset) {
    int kept = errno;
    struct iovec cut[IOV_MAX];
    size_t total = 0;
    if (n < 0 || n > IOV_MAX) {
        errno = EINVAL;
        return -1;
    }
    for (int i = 0; i < n; i++)
        total += parts[i].iov_len;
    enum verdict verdict = begin(call);
    call->a = offset;
    if (offset == HERE) {
        struct stat64 st;
        int append = fcntl(fd, F_GETFL) & O_APPEND;
        call->a = append && !plain_fstat(fd, &st) ? st.st_size : lseek64(fd, 0, SEEK_CUR);
    }
    if (verdict == FAIL)
        return end(call, -1, fi.error, inode_of(fd), NULL, 0);
    if (verdict == HALF && total > 1) {
        n = shortened(cut, parts, n, total / 2);
        parts = cut;
    } else if (verdict == HALF && call->dies_after) {
        die(); /* half of nothing */
    }
    errno = kept;
    ssize_t done = offset == HERE ? plain_writev(fd, parts, n) : plain_pwritev(fd, parts, n, offset);
    return end(call, done, errno, inode_of(fd), parts, n);
}

#define WRITE_CALL(text) struct call call = {.name = text, .class = C_WRITE, .kind = K_WRITE}

ssize_t write(int fd, const void *data, size_t length) {
    WRITE_CALL("write");
    struct iovec part = {(void *)data, length};
    return watched_fd(fd, &call) ? written(&call, fd, &part, 1, HERE) : plain_write(fd, data, length);
}
ssize_t writev(int fd, const struct iovec *parts, int n) {
    WRITE_CALL("writev");
    return watched_fd(fd, &call) ? written(&call, fd, parts, n, HERE) : plain_writev(fd, parts, n);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    WRITE_CALL("pwrite");
    struct iovec part = {(void *)data, length};
    REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
    return watched_fd(fd, &call) ? written(&call, fd, &part, 1, offset) : real(fd, data, length, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    WRITE_CALL("pwrite");
    struct iovec part = {(void *)data, length};
    REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
    return watched_fd(fd, &call) ? written(&call, fd, &part, 1, offset) : real(fd, data, length, offset);
}
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    WRITE_CALL("pwritev");
    return watched_fd(fd, &call) ? written(&call, fd, parts, n, offset) : plain_pwritev(fd, parts, n, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t offset) {
    WRITE_CALL("pwritev");
    return watched_fd(fd, &call) ? written(&call, fd, parts, n, offset) : plain_pwritev(fd, parts, n, offset);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    WRITE_CALL("pwritev2");
    REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int);
    return watched_fd(fd, &call) ? written(&call, fd, parts, n, offset) : real(fd, parts, n, offset, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int n, off64_t offset, int flags) {
    WRITE_CALL("pwritev2");
    REAL(ssize_t, pwritev64v2, int, const struct iovec *, int, off64_t, int);
    return watched_fd(fd, &call) ? written(&call, fd, parts, n, offset) : real(fd, parts, n, offset, flags);
}

/* Copies inside the kernel become a read and a write: they are rare here, and one way through is worth more. */
static ssize_t copied(struct call *call, int out, off64_t *out_offset, int in, off64_t *in_offset, size_t length) {
    char block[65536];
    if (length > sizeof block)
        length = sizeof block;
    ssize_t got = in_offset ? pread64(in, block, length, *in_offset) : read(in, block, length);
    if (got <= 0)
        return got;
    struct iovec part = {block, (size_t)got};
    ssize_t done = written(call, out, &part, 1, out_offset ? *out_offset : HERE);
    ssize_t moved = done < 0 ? 0 : done;
    if (in_offset)
        *in_offset += moved;
    else if (moved < got) {
        int kept = errno;
        lseek64(in, moved - got, SEEK_CUR);
        errno = kept;
    }
    if (out_offset)
        *out_offset += moved;
    return done;
}
ssize_t copy_file_range(int in, off64_t *in_offset, int out, off64_t *out_offset, size_t length, unsigned flags) {
    WRITE_CALL("copy_file_range");
    REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
    return watched_fd(out, &call) ? copied(&call, out, out_offset, in, in_offset, length)
                                  : real(in, in_offset, out, out_offset, length, flags);
}
ssize_t sendfile(int out, int in, off_t *offset, size_t length) {
    WRITE_CALL("sendfile");
    REAL(ssize_t, sendfile, int, int, off_t *, size_t);
    if (!watched_fd(out, &call))
        return real(out, in, offset, length);
    off64_t at = offset ? *offset : 0;
    ssize_t done = copied(&call, out, NULL, in, offset ? &at : NULL, length);
    if (offset)
        *offset = (off_t)at;
    return done;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
    WRITE_CALL("sendfile");
    REAL(ssize_t, sendfile64, int, int, off64_t *, size_t);
    return watched_fd(out, &call) ? copied(&call, out, NULL, in, offset, length) : real(out, in, offset, length);
}

/* ---- reading ---- */

static ssize_t got(struct call *call, int fd, const struct iovec *parts, int n, off64_t offset) {
    struct iovec cut[IOV_MAX];
    size_t total = 0;
    if (n < 0 || n > IOV_MAX) {
        errno = EINVAL;
        return -1;
    }
    for (int i = 0; i < n; i++)
        total += parts[i].iov_len;
    enum verdict verdict = decide(call);
    if (verdict == FAIL)
        return -1;
    if (verdict == HALF && total > 1) {
        n = shortened(cut, parts, n, total / 2);
        parts = cut;
    }
    return offset == HERE ? plain_readv(fd, parts, n) : plain_preadv(fd, parts, n, offset);
}

#define READ_CALL(text) struct call call = {.name = text, .class = C_READ}
#define READS(fd) (armed(C_READ) && watched_fd(fd, &call))

ssize_t read(int fd, void *data, size_t length) {
    READ_CALL("read");
    struct iovec part = {data, length};
    REAL(ssize_t, read, int, void *, size_t);
    return READS(fd) ? got(&call, fd, &part, 1, HERE) : real(fd, data, length);
}
ssize_t readv(int fd, const struct iovec *parts, int n) {
    READ_CALL("readv");
    return READS(fd) ? got(&call, fd, parts, n, HERE) : plain_readv(fd, parts, n);
}
ssize_t pread(int fd, void *data, size_t length, off_t offset) {
    READ_CALL("pread");
    struct iovec part = {data, length};
    REAL(ssize_t, pread, int, void *, size_t, off_t);
    return READS(fd) ? got(&call, fd, &part, 1, offset) : real(fd, data, length, offset);
}
ssize_t pread64(int fd, void *data, size_t length, off64_t offset) {
    READ_CALL("pread");
    struct iovec part = {data, length};
    REAL(ssize_t, pread64, int, void *, size_t, off64_t);
    return READS(fd) ? got(&call, fd, &part, 1, offset) : real(fd, data, length, offset);
}
ssize_t preadv(int fd, const struct iovec *parts, int n, off_t offset) {
    READ_CALL("preadv");
    return READS(fd) ? got(&call, fd, parts, n, offset) : plain_preadv(fd, parts, n, offset);
}
ssize_t preadv64(int fd, const struct iovec *parts, int n, off64_t offset) {
    READ_CALL("preadv");
    return READS(fd) ? got(&call, fd, parts, n, offset) : plain_preadv(fd, parts, n, offset);
}
ssize_t preadv2(int fd, const struct iovec *parts, int n, off_t offset, int flags) {
    READ_CALL("preadv2");
    REAL(ssize_t, preadv2, int, const struct iovec *, int, off_t, int);
    return READS(fd) ? got(&call, fd, parts, n, offset) : real(fd, parts, n, offset, flags);
}
ssize_t preadv64v2(int fd, const struct iovec *parts, int n, off64_t offset, int flags) {
    READ_CALL("preadv2");
    REAL(ssize_t, preadv64v2, int, const struct iovec *, int, off64_t, int);
    return READS(fd) ? got(&call, fd, parts, n, offset) : real(fd, parts, n, offset, flags);
}

/* A directory: each name that is handed out is a read of its own, and may be the one that fails. */
DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    struct call call = {.name = "opendir", .class = C_LIST};
    if (armed(C_LIST) && watched_path(AT_FDCWD, path, &call) && decide(&call) == FAIL)
        return NULL;
    return real(path);
}
#define LIST(symbol, type)                                                                            \
    struct type *symbol(DIR *folder) {                                                                \
        REAL(struct type *, symbol, DIR *);                                                           \
        struct call call = {.name = "readdir", .class = C_LIST};                                      \
        if (armed(C_LIST) && watched_fd(dirfd(folder), &call) && decide(&call) == FAIL)               \
            return NULL;                                                                              \
        return real(folder);                                                                          \
    }
LIST(readdir, dirent)
LIST(readdir64, dirent64)

/* What is there, how large, how old. */
#if SEES_STAT
#define LOOK_FD(symbol, type)                                                                         \
    int symbol(int fd, struct type *st) {                                                             \
        REAL(int, symbol, int, struct type *);                                                        \
        struct call call = {.name = "fstat", .class = C_LOOK};                                        \
        if (armed(C_LOOK) && watched_fd(fd, &call) && decide(&call) == FAIL)                          \
            return -1;                                                                                \
        return real(fd, st);                                                                          \
    }
#define LOOK_PATH(symbol, type)                                                                       \
    int symbol(const char *path, struct type *st) {                                                   \
        REAL(int, symbol, const char *, struct type *);                                               \
        struct call call = {.name = #symbol, .class = C_LOOK};                                        \
        if (armed(C_LOOK) && watched_path(AT_FDCWD, path, &call) && decide(&call) == FAIL)            \
            return -1;                                                                                \
        return real(path, st);                                                                        \
    }
#define LOOK_AT(symbol, type)                                                                         \
    int symbol(int directory, const char *path, struct type *st, int flags) {                         \
        REAL(int, symbol, int, const char *, struct type *, int);                                     \
        struct call call = {.name = "fstatat", .class = C_LOOK};                                      \
        if (armed(C_LOOK) && watched_path(directory, path, &call) && decide(&call) == FAIL)           \
            return -1;                                                                                \
        return real(directory, path, st, flags);                                                      \
    }
LOOK_FD(fstat, stat)
LOOK_FD(fstat64, stat64)
LOOK_PATH(stat, stat)
LOOK_PATH(stat64, stat64)
LOOK_PATH(lstat, stat)
LOOK_PATH(lstat64, stat64)
LOOK_AT(fstatat, stat)
LOOK_AT(fstatat64, stat64)
#endif

/* ---- locks ---- */

int flock(int fd, int operation) {
    REAL(int, flock, int, int);
    struct call call = {.name = operation & LOCK_UN ? "unlock" : "flock", .class = C_LOCK};
    if (armed(C_LOCK) && watched_fd(fd, &call) && decide(&call) == FAIL)
        return -1;
    if (watching() && fi.waiting >= 0 && watched_fd(fd, &call)) {
        int result = real(fd, operation | LOCK_NB), error = errno;
        if (!result || error != EWOULDBLOCK) {
            errno = error;
            return result;
        }
        /* Once: whoever hears of it lets the other go on. */
        int told = fi.report;
        fi.report = fi.waiting, fi.waiting = -1;
        report("waits", 0, &call);
        fi.report = told;
    }
    return real(fd, operation);
}

/* ---- sizes ---- */

#define SIZE_FD(symbol, type)                                                                        \
    int symbol(int fd, type length) {                                                                \
        REAL(int, symbol, int, type);                                                                \
        struct call call = {.name = "ftruncate", .class = C_SIZE, .kind = K_SIZE, .a = length};      \
        if (!watched_fd(fd, &call))                                                                  \
            return real(fd, length);                                                                 \
        SIMPLE(call, real(fd, length), inode_of(fd));                                                \
    }
SIZE_FD(ftruncate, off_t)
SIZE_FD(ftruncate64, off64_t)

#define SIZE_PATH(symbol, type)                                                                      \
    int symbol(const char *path, type length) {                                                      \
        REAL(int, symbol, const char *, type);                                                       \
        struct call call = {.name = "truncate", .class = C_SIZE, .kind = K_SIZE, .a = length};       \
        if (!watched_path(AT_FDCWD, path, &call))                                                    \
            return real(path, length);                                                               \
        SIMPLE(call, real(path, length), inode_at(call.path));                                       \
    }
SIZE_PATH(truncate, off_t)
SIZE_PATH(truncate64, off64_t)

#define ALLOCATE(symbol, type)                                                                       \
    int symbol(int fd, int mode, type offset, type length) {                                         \
        REAL(int, symbol, int, int, type, type);                                                     \
        struct call call = {.name = "fallocate", .class = C_SIZE, .kind = K_ALLOCATE, .b = mode};    \
        call.a = offset + length;                                                                    \
        if (!watched_fd(fd, &call))                                                                  \
            return real(fd, mode, offset, length);                                                   \
        SIMPLE(call, real(fd, mode, offset, length), inode_of(fd));                                  \
    }
ALLOCATE(fallocate, off_t)
ALLOCATE(fallocate64, off64_t)

/* posix_fallocate answers with the error itself and leaves errno alone. */
static int allocated(struct call *call, int (*real)(int, off64_t, off64_t), int fd, off64_t offset, off64_t length) {
    enum verdict verdict = begin(call);
    int error = verdict == FAIL ? fi.error : verdict == SKIP ? 0 : real(fd, offset, length);
    int kept = errno;
    end(call, error ? -1 : 0, error, inode_of(fd), NULL, 0);
    errno = kept;
    return error;
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    struct call call = {.name = "posix_fallocate", .class = C_SIZE, .kind = K_ALLOCATE, .a = offset + length};
    return watched_fd(fd, &call) ? allocated(&call, real, fd, offset, length) : real(fd, offset, length);
}
int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

/* ---- syncing ---- */

static int is_directory(int fd) {
    struct stat64 st;
    return !plain_fstat(fd, &st) && S_ISDIR(st.st_mode);
}

#define SYNC(symbol)                                                                    \
    int symbol(int fd) {                                                                \
        REAL(int, symbol, int);                                                         \
        struct call call = {.name = #symbol, .class = C_SYNC, .kind = K_SYNC};          \
        if (!watched_fd(fd, &call))                                                     \
            return real(fd);                                                            \
        call.b = is_directory(fd);                                                      \
        SIMPLE(call, real(fd), inode_of(fd));                                           \
    }
SYNC(fsync)
SYNC(fdatasync)

/* Starts write-back and promises nothing about metadata: durable in no model. */
int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
    REAL(int, sync_file_range, int, off64_t, off64_t, unsigned);
    struct call call = {.name = "sync_file_range", .class = C_SYNC, .kind = K_RANGE, .a = offset, .b = length};
    if (!watched_fd(fd, &call))
        return real(fd, offset, length, flags);
    SIMPLE(call, real(fd, offset, length, flags), inode_of(fd));
}

/* ---- names ---- */

int renameat2(int from, const char *path, int to, const char *other, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    struct call call = {.name = "rename", .class = C_NAME, .kind = K_RENAME, .a = flags};
    if (!watched_pair(from, path, to, other, &call))
        return real(from, path, to, other, flags);
    SIMPLE(call, real(from, path, to, other, flags), inode_at(call.other));
}
int renameat(int from, const char *path, int to, const char *other) {
    REAL(int, renameat, int, const char *, int, const char *);
    struct call call = {.name = "rename", .class = C_NAME, .kind = K_RENAME};
    if (!watched_pair(from, path, to, other, &call))
        return real(from, path, to, other);
    SIMPLE(call, real(from, path, to, other), inode_at(call.other));
}
int rename(const char *path, const char *other) {
    REAL(int, rename, const char *, const char *);
    struct call call = {.name = "rename", .class = C_NAME, .kind = K_RENAME};
    if (!watched_pair(AT_FDCWD, path, AT_FDCWD, other, &call))
        return real(path, other);
    SIMPLE(call, real(path, other), inode_at(call.other));
}
int linkat(int from, const char *path, int to, const char *other, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    struct call call = {.name = "link", .class = C_NAME, .kind = K_LINK};
    if (!watched_pair(from, path, to, other, &call))
        return real(from, path, to, other, flags);
    SIMPLE(call, real(from, path, to, other, flags), inode_at(call.other));
}
int link(const char *path, const char *other) {
    REAL(int, link, const char *, const char *);
    struct call call = {.name = "link", .class = C_NAME, .kind = K_LINK};
    if (!watched_pair(AT_FDCWD, path, AT_FDCWD, other, &call))
        return real(path, other);
    SIMPLE(call, real(path, other), inode_at(call.other));
}
int symlinkat(const char *target, int to, const char *path) {
    REAL(int, symlinkat, const char *, int, const char *);
    struct call call = {.name = "symlink", .class = C_NAME, .kind = K_SYMLINK};
    if (!watched_path(to, path, &call))
        return real(target, to, path);
    snprintf(call.other, sizeof call.other, "%s", target);
    SIMPLE(call, real(target, to, path), inode_at(call.path));
}
int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    struct call call = {.name = "mkdir", .class = C_MKDIR, .kind = K_MKDIR};
    if (!watched_path(directory, path, &call))
        return real(directory, path, mode);
    SIMPLE(call, real(directory, path, mode), inode_at(call.path));
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int directory, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    int folder = flags & AT_REMOVEDIR;
    struct call call = {.name = folder ? "rmdir" : "unlink", .class = C_REMOVE, .kind = folder ? K_RMDIR : K_UNLINK};
    if (!watched_path(directory, path, &call))
        return real(directory, path, flags);
    SIMPLE(call, real(directory, path, flags), -1);
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

/* ---- what we cannot follow ---- */

static void mapped(int protection, int flags, int fd) {
    struct call call = {.name = "mmap", .kind = K_MAP};
    if (fd < 0 || !(flags & MAP_SHARED) || !(protection & PROT_WRITE) || !watched_fd(fd, &call))
        return;
    int kept = errno;
    enter();
    end(&call, 0, kept, inode_of(fd), NULL, 0);
}
/* SQLite's shared memory is written to, and is no way to read a file. */
static int unmappable(int protection, int flags, int fd) {
    struct call call = {.name = "mmap", .class = C_MAP};
    int reads = !((flags & MAP_SHARED) && (protection & PROT_WRITE));
    return fd >= 0 && reads && armed(C_MAP) && watched_fd(fd, &call) && decide(&call) == FAIL;
}
void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    REAL(void *, mmap, void *, size_t, int, int, int, off_t);
    if (unmappable(protection, flags, fd))
        return MAP_FAILED;
    mapped(protection, flags, fd);
    return real(address, length, protection, flags, fd, offset);
}
void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    REAL(void *, mmap64, void *, size_t, int, int, int, off64_t);
    if (unmappable(protection, flags, fd))
        return MAP_FAILED;
    mapped(protection, flags, fd);
    return real(address, length, protection, flags, fd, offset);
}

/* ---- for the harness ---- */

static void watch(const char *root) {
    snprintf(fi.root, sizeof fi.root, "%s", root);
    fi.root_length = strlen(fi.root);
    __atomic_store_n(&fi.active, 1, __ATOMIC_RELEASE);
}

/* At the k-th call among the classes in `mask`, and with `forever` at every later one, do `action`; say so once on
 * `report_fd`. */
void fi_arm(const char *root, long at, int action, int error, int forever, int mask, int report_fd) {
    lock_all();
    fi.at = at, fi.action = action, fi.error = error, fi.forever = forever, fi.mask = mask, fi.report = report_fd;
    fi.count = fi.fired = 0;
    watch(root);
    unlock_all();
}

/* At the call at which the fault strikes, stand still until a byte comes through `resume_fd`. */
void fi_stand_still(int resume_fd) { fi.resume = resume_fd; }

/* Say once, on `report_fd`, that a lock below the root is held by somebody else. */
void fi_tell_waiting(int report_fd) { fi.waiting = report_fd; }

/* Appends every call below `root` to the file `trace` from now on; may be combined with fi_arm. */
int fi_record(const char *root, const char *trace) {
    int fd = open(trace, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    /* Out of the way of the low numbers, which the program under test shall get as it would without us. */
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (fd >= 0)
        close(fd);
    if (high < 0)
        return -1;
    lock_all();
    fi.trace = high;
    watch(root);
    unlock_all();
    return 0;
}

/* Let what SQLite draws at random follow from a number; 0: from chance again. */
void fi_seed(unsigned seed) { fi.seed = seed; }

/* How many calls of the armed classes were made. */
long fi_count(void) { return fi.count; }

/* "Commit `number` was acknowledged here", in the trace. */
void fi_mark(long number) {
    struct call call = {.name = "mark", .kind = K_MARK, .a = number};
    if (!watching())
        return;
    enter();
    end(&call, 0, 0, -1, NULL, 0);
}
