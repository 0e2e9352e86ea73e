// A preloaded library that keeps a log of everything a process does to the files below one folder, so that the states
// a power cut may leave behind can be made from it afterwards (power_cut.py reads the log and makes them).
//
//   CTRBOX_UNSYNCED_ROOT   the folder, as realpath gives it
//   CTRBOX_UNSYNCED_LOG    the log; records are appended
//
// A record is a head of 40 bytes (struct head), then two byte strings. One lock is held over a call and its record, so
// the log has the order of the calls. A record is written after its call; killed in between, the call is missing in
// the log, which is as good as lost in a power cut. Two exceptions. A sync carries the number of records that there
// were when it began: what came later it does not cover. What is written to standard output is logged before it is
// said: the outside never knows more than the log.
//
// sync_file_range is not here: it promises nothing about metadata or the disk's own cache. What the log cannot see is
// refused below the folder, with an error after which callers take another way or fail loudly: stdio, shared writable
// maps, copies inside the kernel, links by name, exchanges. So is io_uring, everywhere in the process.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, MKDIR, WRITE, TRUNCATE, ZERO, SYNC, SYNC_ALL, RENAME, LINK, UNLINK, SAID };

struct head {
  uint32_t mark, kind;
  uint64_t inode;          // of the file or folder
  uint64_t at;             // place of a write, size of a truncation, records before a sync began
  uint64_t more;           // bytes of a zeroing
  uint32_t first, second;  // bytes of the strings that follow: a path and another, or data
};
#define MARK 0x31545543u  // "CUT1"

static char root[PATH_MAX];
static size_t root_size;
static int log_file = -1;
static uint64_t records;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// The function of libc that the one of the same name here stands before.
#define REAL(result, name, ...)       \
  static result (*real)(__VA_ARGS__); \
  if (!real) *(void**)&real = dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("CTRBOX_UNSYNCED_ROOT"), *path = getenv("CTRBOX_UNSYNCED_LOG");
  if (!folder || !path || strlen(folder) >= sizeof root) return;
  REAL(int, "open", const char*, int, ...);
  log_file = real(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log_file < 0) {
    perror(path);
    _exit(111);
  }
  strcpy(root, folder);
  root_size = strlen(root);
}

static void record(enum kind kind, uint64_t inode, uint64_t at, uint64_t more, const void* first, size_t first_size,
                   const void* second, size_t second_size) {
  struct head head = {MARK, kind, inode, at, more, (uint32_t)first_size, (uint32_t)second_size};
  struct iovec parts[3] = {{&head, sizeof head}, {(void*)first, first_size}, {(void*)second, second_size}};
  size_t left = sizeof head + first_size + second_size;
  int kept = errno;
  REAL(ssize_t, "writev", int, const struct iovec*, int);
  for (struct iovec* part = parts; left > 0;) {
    ssize_t n = real(log_file, part, (int)(parts + 3 - part));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) _exit(112);  // a log with a hole would call lost what was kept
    left -= (size_t)n;
    for (; n > 0 && (size_t)n >= part->iov_len; ++part) n -= (ssize_t)part->iov_len;
    if (n > 0) {
      part->iov_base = (char*)part->iov_base + n;
      part->iov_len -= (size_t)n;
    }
  }
  ++records;
  errno = kept;
}

static int below(const char* path) {
  return log_file >= 0 && strncmp(path, root, root_size) == 0 && (path[root_size] == '/' || path[root_size] == 0);
}

static int path_of(int file, char out[PATH_MAX]) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", file);
  ssize_t n = readlink(name, out, PATH_MAX - 1);
  out[n < 0 ? 0 : n] = 0;
  return n > 0;
}

// Whether an open file lies below the folder; stateless, so copies of a descriptor need no care.
static int ours(int file) {
  if (log_file < 0 || file < 0) return 0;
  int kept = errno;
  char path[PATH_MAX];
  int found = path_of(file, path) && below(path);
  errno = kept;
  return found;
}

// The path of an entry with its folder resolved, relative to the root; NULL when it lies elsewhere.
static const char* entry(int folder, const char* path, char out[PATH_MAX]) {
  if (log_file < 0 || !path || !*path || strlen(path) >= PATH_MAX) return NULL;
  int kept = errno;
  char whole[2 * PATH_MAX], parent[PATH_MAX];
  if (path[0] == '/') {
    strcpy(whole, path);
  } else {
    if (folder == AT_FDCWD ? !getcwd(parent, sizeof parent) : !path_of(folder, parent)) return errno = kept, NULL;
    snprintf(whole, sizeof whole, "%s/%s", parent, path);
  }
  size_t size = strlen(whole);
  while (size > 1 && whole[size - 1] == '/') whole[--size] = 0;
  char* last = strrchr(whole, '/');
  if (!last[1] || !strcmp(last + 1, ".") || !strcmp(last + 1, "..")) return errno = kept, NULL;
  *last = 0;
  char* found = realpath(*whole ? whole : "/", parent);
  errno = kept;
  if (!found || !below(parent) || strlen(parent) + strlen(last + 1) + 2 > PATH_MAX) return NULL;
  snprintf(whole, sizeof whole / 2, "%s%s%s", parent + root_size, "/", last + 1);
  strcpy(out, whole + 1);
  return out;
}

static uint64_t inode_of(int file) {
  struct stat facts;
  return fstat(file, &facts) == 0 ? facts.st_ino : 0;
}

static uint64_t inode_at(int folder, const char* path) {
  struct stat facts;
  int kept = errno;
  uint64_t found = fstatat(folder, path, &facts, AT_SYMLINK_NOFOLLOW) == 0 ? facts.st_ino : 0;
  errno = kept;
  return found;
}

static long refuse(int reason) {
  errno = reason;
  return -1;
}

// ---- opening

static int open_logged(int folder, const char* path, int flags, mode_t mode) {
  REAL(int, "openat", int, const char*, int, ...);
  char name[PATH_MAX];
  if (!(flags & (O_CREAT | O_TRUNC)) || !entry(folder, path, name)) return real(folder, path, flags, mode);
  if ((flags & O_TMPFILE) == O_TMPFILE) return (int)refuse(EOPNOTSUPP);
  pthread_mutex_lock(&lock);
  int there = inode_at(folder, path) != 0;
  int file = real(folder, path, flags, mode);
  if (file >= 0 && !there) record(CREATE, inode_of(file), 0, 0, name, strlen(name), NULL, 0);
  if (file >= 0 && there && (flags & O_TRUNC)) record(TRUNCATE, inode_of(file), 0, 0, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  return file;
}

#define MODE_OF(flags)                     \
  mode_t mode = 0;                         \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list rest;                          \
    va_start(rest, flags);                 \
    mode = va_arg(rest, mode_t);           \
    va_end(rest);                          \
  }

int open(const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_logged(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_logged(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_logged(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  MODE_OF(flags)
  return open_logged(folder, path, flags, mode);
}
int __open_2(const char* path, int flags) { return open_logged(AT_FDCWD, path, flags, 0); }
int __open64_2(const char* path, int flags) { return open_logged(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char* path, int flags) { return open_logged(folder, path, flags, 0); }
int __openat64_2(int folder, const char* path, int flags) { return open_logged(folder, path, flags, 0); }
int creat(const char* path, mode_t mode) { return open_logged(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char* path, mode_t mode) { return open_logged(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

static FILE* stdio(const char* function, const char* path, const char* mode) {
  FILE* (*real)(const char*, const char*);
  *(void**)&real = dlsym(RTLD_NEXT, function);
  char name[PATH_MAX];
  if (strpbrk(mode, "wa+") && entry(AT_FDCWD, path, name)) return errno = ENOTSUP, NULL;
  return real(path, mode);
}
FILE* fopen(const char* path, const char* mode) { return stdio("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return stdio("fopen64", path, mode); }

// ---- bytes

// What a call wrote: n bytes of the parts, at a place, or before the offset of the file.
static void wrote(int file, const struct iovec* parts, int count, off_t at, ssize_t n) {
  int kept = errno;
  if (at < 0) at = lseek(file, 0, SEEK_CUR) - n;
  int synced = fcntl(file, F_GETFL) & (O_SYNC | O_DSYNC);
  for (int k = 0; k < count && n > 0; ++k) {
    size_t size = parts[k].iov_len < (size_t)n ? parts[k].iov_len : (size_t)n;
    record(WRITE, inode_of(file), (uint64_t)at, 0, parts[k].iov_base, size, NULL, 0);
    at += (off_t)size;
    n -= (ssize_t)size;
  }
  if (synced) record(SYNC, inode_of(file), records, 0, NULL, 0, NULL, 0);
  errno = kept;
}

// `call` inside the lock and with its record where the file is one of ours. O_APPEND has no place of its own.
#define LOGGED(file, parts, count, at, call)                                              \
  if (!ours(file)) return call;                                                           \
  pthread_mutex_lock(&lock);                                                              \
  ssize_t n = call;                                                                       \
  if (n > 0) wrote(file, parts, count, (fcntl(file, F_GETFL) & O_APPEND) ? -1 : (at), n); \
  pthread_mutex_unlock(&lock);                                                            \
  return n

ssize_t write(int file, const void* data, size_t size) {
  REAL(ssize_t, "write", int, const void*, size_t);
  if (file == STDOUT_FILENO && log_file >= 0) {
    pthread_mutex_lock(&lock);
    record(SAID, 0, 0, 0, data, size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return real(file, data, size);
  }
  struct iovec part = {(void*)data, size};
  LOGGED(file, &part, 1, -1, real(file, data, size));
}
ssize_t writev(int file, const struct iovec* parts, int count) {
  REAL(ssize_t, "writev", int, const struct iovec*, int);
  LOGGED(file, parts, count, -1, real(file, parts, count));
}
static ssize_t write_at(int file, const void* data, size_t size, off_t at) {
  REAL(ssize_t, "pwrite64", int, const void*, size_t, off_t);
  struct iovec part = {(void*)data, size};
  LOGGED(file, &part, 1, at, real(file, data, size, at));
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) { return write_at(file, data, size, at); }
ssize_t pwrite64(int file, const void* data, size_t size, off_t at) { return write_at(file, data, size, at); }
static ssize_t parts_at(int file, const struct iovec* parts, int count, off_t at, int flags) {
  REAL(ssize_t, "pwritev64v2", int, const struct iovec*, int, off_t, int);
  if (flags && ours(file)) return refuse(EOPNOTSUPP);
  LOGGED(file, parts, count, at, real(file, parts, count, at, flags));
}
ssize_t pwritev(int file, const struct iovec* p, int count, off_t at) { return parts_at(file, p, count, at, 0); }
ssize_t pwritev64(int file, const struct iovec* p, int count, off_t at) { return parts_at(file, p, count, at, 0); }
ssize_t pwritev2(int file, const struct iovec* p, int count, off_t at, int f) {
  return parts_at(file, p, count, at, f);
}
ssize_t pwritev64v2(int file, const struct iovec* p, int count, off_t at, int f) {
  return parts_at(file, p, count, at, f);
}

static int resize(int file, off_t size) {
  REAL(int, "ftruncate64", int, off_t);
  if (!ours(file)) return real(file, size);
  pthread_mutex_lock(&lock);
  int result = real(file, size);
  if (result == 0) record(TRUNCATE, inode_of(file), (uint64_t)size, 0, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}
int ftruncate(int file, off_t size) { return resize(file, size); }
int ftruncate64(int file, off_t size) { return resize(file, size); }

static int resize_path(const char* path, off_t size) {
  int file = open_logged(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
  if (file < 0) return -1;
  int result = resize(file, size), kept = errno;
  close(file);
  errno = kept;
  return result;
}
int truncate(const char* path, off_t size) { return resize_path(path, size); }
int truncate64(const char* path, off_t size) { return resize_path(path, size); }

static int allocate(int file, int mode, off_t at, off_t size) {
  REAL(int, "fallocate64", int, int, off_t, off_t);
  if (!ours(file)) return real(file, mode, at, size);
  if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE)) return (int)refuse(EOPNOTSUPP);
  pthread_mutex_lock(&lock);
  int result = real(file, mode, at, size);
  struct stat facts;
  if (result == 0 && (mode & FALLOC_FL_PUNCH_HOLE))
    record(ZERO, inode_of(file), (uint64_t)at, (uint64_t)size, NULL, 0, NULL, 0);
  else if (result == 0 && mode == 0 && fstat(file, &facts) == 0)
    record(TRUNCATE, facts.st_ino, (uint64_t)facts.st_size, 0, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}
int fallocate(int file, int mode, off_t at, off_t size) { return allocate(file, mode, at, size); }
int fallocate64(int file, int mode, off_t at, off_t size) { return allocate(file, mode, at, size); }
int posix_fallocate(int file, off_t at, off_t size) { return allocate(file, 0, at, size) == 0 ? 0 : errno; }
int posix_fallocate64(int file, off_t at, off_t size) { return allocate(file, 0, at, size) == 0 ? 0 : errno; }

static void* map(void* at, size_t size, int allowed, int flags, int file, off_t place) {
  REAL(void*, "mmap64", void*, size_t, int, int, int, off_t);
  int shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
  if (shared && (allowed & PROT_WRITE) && ours(file)) return errno = ENODEV, MAP_FAILED;
  return real(at, size, allowed, flags, file, place);
}
void* mmap(void* at, size_t size, int allowed, int flags, int file, off_t place) {
  return map(at, size, allowed, flags, file, place);
}
void* mmap64(void* at, size_t size, int allowed, int flags, int file, off_t place) {
  return map(at, size, allowed, flags, file, place);
}

ssize_t copy_file_range(int from, off_t* a, int to, off_t* b, size_t size, unsigned flags) {
  REAL(ssize_t, "copy_file_range", int, off_t*, int, off_t*, size_t, unsigned);
  return ours(to) ? refuse(EXDEV) : real(from, a, to, b, size, flags);
}
ssize_t sendfile(int to, int from, off_t* at, size_t size) {
  REAL(ssize_t, "sendfile", int, int, off_t*, size_t);
  return ours(to) ? refuse(EINVAL) : real(to, from, at, size);
}
ssize_t sendfile64(int to, int from, off_t* at, size_t size) { return sendfile(to, from, at, size); }

// ---- syncs: what was logged before they began is kept once they have ended

static int synced(int file, int (*real)(int), enum kind kind) {
  if (!ours(file)) return real(file);
  pthread_mutex_lock(&lock);
  uint64_t before = records;
  pthread_mutex_unlock(&lock);
  int result = real(file);
  pthread_mutex_lock(&lock);
  if (result == 0) record(kind, inode_of(file), before, 0, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}
int fsync(int file) {
  REAL(int, "fsync", int);
  return synced(file, real, SYNC);
}
int fdatasync(int file) {
  REAL(int, "fdatasync", int);
  return synced(file, real, SYNC);
}
int syncfs(int file) {
  REAL(int, "syncfs", int);
  return synced(file, real, SYNC_ALL);
}

// ---- folders

#define CHANGED(call, ...)              \
  pthread_mutex_lock(&lock);            \
  int result = call;                    \
  if (result == 0) record(__VA_ARGS__); \
  pthread_mutex_unlock(&lock);          \
  return result

static int move(int from, const char* old, int to, const char* path, unsigned flags) {
  REAL(int, "renameat2", int, const char*, int, const char*, unsigned);
  char a[PATH_MAX], b[PATH_MAX];
  int left = entry(from, old, a) != NULL, right = entry(to, path, b) != NULL;
  if (!left && !right) return real(from, old, to, path, flags);
  if (!left || !right) return (int)refuse(EXDEV);
  if (flags & ~1u) return (int)refuse(EINVAL);  // all but RENAME_NOREPLACE
  CHANGED(real(from, old, to, path, flags), RENAME, 0, 0, 0, a, strlen(a), b, strlen(b));
}
int rename(const char* old, const char* path) { return move(AT_FDCWD, old, AT_FDCWD, path, 0); }
int renameat(int from, const char* old, int to, const char* path) { return move(from, old, to, path, 0); }
int renameat2(int from, const char* old, int to, const char* path, unsigned f) { return move(from, old, to, path, f); }

static int join(int from, const char* old, int to, const char* path, int flags) {
  REAL(int, "linkat", int, const char*, int, const char*, int);
  char a[PATH_MAX], b[PATH_MAX];
  int left = entry(from, old, a) != NULL, right = entry(to, path, b) != NULL;
  if (!right) return real(from, old, to, path, flags);
  if (!left) return (int)refuse(EXDEV);
  CHANGED(real(from, old, to, path, flags), LINK, 0, 0, 0, a, strlen(a), b, strlen(b));
}
int link(const char* old, const char* path) { return join(AT_FDCWD, old, AT_FDCWD, path, 0); }
int linkat(int from, const char* old, int to, const char* path, int flags) { return join(from, old, to, path, flags); }

static int drop(int folder, const char* path, int flags) {
  REAL(int, "unlinkat", int, const char*, int);
  char a[PATH_MAX];
  if (!entry(folder, path, a)) return real(folder, path, flags);
  CHANGED(real(folder, path, flags), UNLINK, 0, 0, 0, a, strlen(a), NULL, 0);
}
int unlink(const char* path) { return drop(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* path, int flags) { return drop(folder, path, flags); }
int rmdir(const char* path) { return drop(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  int result = drop(AT_FDCWD, path, 0);
  return result != 0 && (errno == EISDIR || errno == EPERM) ? drop(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

static int make(int folder, const char* path, mode_t mode) {
  REAL(int, "mkdirat", int, const char*, mode_t);
  char a[PATH_MAX];
  if (!entry(folder, path, a)) return real(folder, path, mode);
  CHANGED(real(folder, path, mode), MKDIR, inode_at(folder, path), 0, 0, a, strlen(a), NULL, 0);
}
int mkdir(const char* path, mode_t mode) { return make(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char* path, mode_t mode) { return make(folder, path, mode); }

int symlinkat(const char* target, int folder, const char* path) {
  REAL(int, "symlinkat", const char*, int, const char*);
  char a[PATH_MAX];
  return entry(folder, path, a) ? (int)refuse(EPERM) : real(target, folder, path);
}
int symlink(const char* target, const char* path) { return symlinkat(target, AT_FDCWD, path); }

// Writes by io_uring would not be seen.
long syscall(long number, ...) {
  REAL(long, "syscall", long, ...);
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (int k = 0; k < 6; ++k) a[k] = va_arg(rest, long);
  va_end(rest);
  if (log_file >= 0 && number == SYS_io_uring_setup) return refuse(ENOSYS);
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
