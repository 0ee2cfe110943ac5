/* Records what one process does to the files of one directory, and what it says to its clients.

   cc -shared -fPIC -O2 -o recorder.so recorder.c -ldl -lpthread
   LD_PRELOAD=recorder.so ANABRANCH_POWER_ROOT=DIR ANABRANCH_POWER_TRACE=FILE python ...

   It stands before the functions of the C library. Every call that changes a file below DIR, or
   waits for its data to be on disk, is appended to FILE with its bytes; so are the bytes that pass
   over accepted connections. One mutex is held from the call to its record, so the order of records
   is the order of what happened, across threads. A sync does not hold the mutex: it has one record
   when it begins and one when it has succeeded.

   A call that the record cannot express is recorded as 'X' with its name; the reader refuses such a
   trace. A call that is not interposed here at all shows when the whole record is replayed: the
   files must then be what they are.

   A record, numbers in the order of the machine:
       kind 1   inode 8   number 8   number 8   length 4   length 4   text   bytes

   kind  inode       numbers            text            bytes
   'P'   process                                                   a process begins
   'C'   of the file                    path                       a file is created
   'D'   of the directory               path                       a directory is made
   'W'   of the file offset                             data       a write
   'T'   of the file length                                        a truncation
   'A'   of the file offset, length                                room is allocated
   'R'   of the file                    old path        new path   a rename
   'L'   of the file                    new path                   a file gets another name
   'U'                                  path                       a file is unlinked, or a
                                                                   directory removed
   'B'   of the file sync's number      path, of a directory only  a sync begins
   'S'   of the file sync's number                                 a sync has succeeded
   'N'               connection                                    a connection is accepted
   '>' '<'           connection                         data       sent to it, received from it
   'X'                                  name                       a call that is not understood
*/
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES_MAX 65536
#define REAL(name) ((__typeof__(&name))real_function(#name))

struct file {
    int is_tracked;     /* it is below the root */
    int is_directory;
    uint64_t inode;
    uint64_t connection; /* not 0: an accepted connection */
    char *path;          /* of a directory */
};

static struct file files[FILES_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int trace = -1;
static uint64_t next_sync = 1, next_connection = 1;

static void *real_function(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

static void put(const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        ssize_t done = syscall(SYS_write, trace, at, size);
        if (done < 0)
            abort();
        at += done;
        size -= (size_t)done;
    }
}

static void record(char kind, uint64_t inode, uint64_t one, uint64_t two, const char *text,
                   const void *data, size_t size)
{
    uint32_t text_length = text ? (uint32_t)strlen(text) : 0, data_length = (uint32_t)size;
    char head[33];
    head[0] = kind;
    memcpy(head + 1, &inode, 8);
    memcpy(head + 9, &one, 8);
    memcpy(head + 17, &two, 8);
    memcpy(head + 25, &text_length, 4);
    memcpy(head + 29, &data_length, 4);
    put(head, sizeof head);
    put(text, text_length);
    put(data, size);
}

__attribute__((constructor)) static void begin(void)
{
    const char *directory = getenv("ANABRANCH_POWER_ROOT"), *file = getenv("ANABRANCH_POWER_TRACE");
    if (directory == NULL || file == NULL || realpath(directory, root) == NULL)
        return;
    root_length = strlen(root);
    trace = (int)syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (trace < 0)
        abort();
    record('P', (uint64_t)getpid(), 0, 0, NULL, NULL, 0);
}

/* The path below the root, "" for the root itself, or NULL. */
static const char *below_root(int directory, const char *path, char *buffer)
{
    if (trace < 0 || path == NULL)
        return NULL;
    if (path[0] != '/') {
        if (directory != AT_FDCWD) {
            if (directory < 0 || directory >= FILES_MAX || !files[directory].is_directory)
                return NULL;
            snprintf(buffer, PATH_MAX, "%s/%s", files[directory].path, path);
            return buffer[0] == '/' ? buffer + 1 : buffer;
        }
        char here[PATH_MAX];
        if (getcwd(here, sizeof here) == NULL)
            return NULL;
        if (snprintf(buffer, PATH_MAX, "%s/%s", here, path) >= PATH_MAX)
            return NULL;
        path = buffer;
    }
    if (strncmp(path, root, root_length) != 0)
        return NULL;
    path += root_length;
    if (*path == '\0')
        return path;
    return *path == '/' ? path + 1 : NULL;
}

static struct file *tracked(int fd)
{
    return fd >= 0 && fd < FILES_MAX && files[fd].is_tracked ? &files[fd] : NULL;
}

static void unknown(const char *name)
{
    record('X', 0, 0, 0, name, NULL, 0);
}

/* -- opening and closing ---------------------------------------------------------------------- */

static int open_recorded(int directory, const char *path, int flags, mode_t mode)
{
    char buffer[PATH_MAX];
    const char *inside = below_root(directory, path, buffer);
    if (inside == NULL)
        return (int)syscall(SYS_openat, directory, path, flags, mode);
    struct stat before, after;
    pthread_mutex_lock(&mutex);
    int was_there = fstatat(directory, path, &before, 0) == 0;
    int fd = (int)syscall(SYS_openat, directory, path, flags, mode);
    int error = errno;
    if (fd >= FILES_MAX)
        abort();
    if (fd >= 0 && fstat(fd, &after) == 0) {
        struct file *file = &files[fd];
        free(file->path);
        file->is_tracked = 1;
        file->is_directory = S_ISDIR(after.st_mode);
        file->inode = after.st_ino;
        file->connection = 0;
        file->path = file->is_directory ? strdup(inside) : NULL;
        if (!was_there)
            record('C', after.st_ino, 0, 0, inside, NULL, 0);
        else if ((flags & O_TRUNC) && before.st_size > 0)
            record('T', after.st_ino, 0, 0, NULL, NULL, 0);
        if (flags & O_TMPFILE & ~O_DIRECTORY)
            unknown("O_TMPFILE");
    }
    pthread_mutex_unlock(&mutex);
    errno = error;
    return fd;
}

#define WITH_MODE(flags)                                \
    mode_t mode = 0;                                    \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
        va_list more;                                   \
        va_start(more, flags);                          \
        mode = va_arg(more, mode_t);                    \
        va_end(more);                                   \
    }

int open(const char *path, int flags, ...)
{
    WITH_MODE(flags)
    return open_recorded(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    WITH_MODE(flags)
    return open_recorded(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    WITH_MODE(flags)
    return open_recorded(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    WITH_MODE(flags)
    return open_recorded(directory, path, flags | O_LARGEFILE, mode);
}

int close(int fd)
{
    pthread_mutex_lock(&mutex);
    if (fd >= 0 && fd < FILES_MAX) {
        files[fd].is_tracked = files[fd].is_directory = 0;
        files[fd].connection = 0;
    }
    int result = (int)syscall(SYS_close, fd);
    pthread_mutex_unlock(&mutex);
    return result;
}

static int accepted(int fd)
{
    if (fd >= 0 && fd < FILES_MAX && trace >= 0) {
        pthread_mutex_lock(&mutex);
        files[fd].is_tracked = 0;
        files[fd].connection = next_connection++;
        record('N', 0, files[fd].connection, 0, NULL, NULL, 0);
        pthread_mutex_unlock(&mutex);
    }
    return fd;
}

int accept(int fd, struct sockaddr *address, socklen_t *length)
{
    return accepted(REAL(accept)(fd, address, length));
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    return accepted(REAL(accept4)(fd, address, length, flags));
}

/* -- writing ---------------------------------------------------------------------------------- */

static void record_write(struct file *file, off_t offset, const void *data, ssize_t done)
{
    if (done > 0)
        record('W', file->inode, (uint64_t)offset, 0, NULL, data, (size_t)done);
}

static void record_vector(char kind, uint64_t inode, uint64_t number, const struct iovec *parts,
                          int count, ssize_t done)
{
    if (done <= 0)
        return;
    char *data = malloc((size_t)done);
    size_t used = 0;
    for (int i = 0; i < count && used < (size_t)done; i++) {
        size_t size = parts[i].iov_len;
        if (size > (size_t)done - used)
            size = (size_t)done - used;
        memcpy(data + used, parts[i].iov_base, size);
        used += size;
    }
    record(kind, inode, number, 0, NULL, data, used);
    free(data);
}

static uint64_t connection_of(int fd)
{
    return fd >= 0 && fd < FILES_MAX && trace >= 0 ? files[fd].connection : 0;
}

#define LOCKED(call)                   \
    pthread_mutex_lock(&mutex);        \
    ssize_t done = (call);             \
    int error = errno;

#define UNLOCKED                       \
    pthread_mutex_unlock(&mutex);      \
    errno = error;                     \
    return done;

ssize_t write(int fd, const void *data, size_t size)
{
    uint64_t connection = connection_of(fd);
    if (tracked(fd) == NULL && connection == 0)
        return syscall(SYS_write, fd, data, size);
    LOCKED(syscall(SYS_write, fd, data, size))
    if (connection && done > 0)
        record('>', 0, connection, 0, NULL, data, (size_t)done);
    else if (!connection)
        record_write(tracked(fd), lseek(fd, 0, SEEK_CUR) - done, data, done);
    UNLOCKED
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    uint64_t connection = connection_of(fd);
    if (tracked(fd) == NULL && connection == 0)
        return syscall(SYS_writev, fd, parts, count);
    LOCKED(syscall(SYS_writev, fd, parts, count))
    if (connection)
        record_vector('>', 0, connection, parts, count, done);
    else
        record_vector('W', tracked(fd)->inode, (uint64_t)(lseek(fd, 0, SEEK_CUR) - done), parts,
                      count, done);
    UNLOCKED
}

static ssize_t pwrite_recorded(int fd, const void *data, size_t size, off_t offset)
{
    if (tracked(fd) == NULL)
        return syscall(SYS_pwrite64, fd, data, size, offset);
    LOCKED(syscall(SYS_pwrite64, fd, data, size, offset))
    record_write(tracked(fd), offset, data, done);
    UNLOCKED
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite_recorded(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    return pwrite_recorded(fd, data, size, offset);
}

static ssize_t pwritev_recorded(int fd, const struct iovec *parts, int count, off_t offset)
{
    if (tracked(fd) == NULL)
        return syscall(SYS_pwritev, fd, parts, count, offset, 0);
    LOCKED(syscall(SYS_pwritev, fd, parts, count, offset, 0))
    record_vector('W', tracked(fd)->inode, (uint64_t)offset, parts, count, done);
    UNLOCKED
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return pwritev_recorded(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    return pwritev_recorded(fd, parts, count, offset);
}

ssize_t send(int fd, const void *data, size_t size, int flags)
{
    uint64_t connection = connection_of(fd);
    if (connection == 0)
        return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
    LOCKED(syscall(SYS_sendto, fd, data, size, flags, NULL, 0))
    if (done > 0)
        record('>', 0, connection, 0, NULL, data, (size_t)done);
    UNLOCKED
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    uint64_t connection = connection_of(fd);
    if (connection == 0)
        return syscall(SYS_sendmsg, fd, message, flags);
    LOCKED(syscall(SYS_sendmsg, fd, message, flags))
    record_vector('>', 0, connection, message->msg_iov, (int)message->msg_iovlen, done);
    UNLOCKED
}

ssize_t recv(int fd, void *data, size_t size, int flags)
{
    uint64_t connection = connection_of(fd);
    if (connection == 0)
        return syscall(SYS_recvfrom, fd, data, size, flags, NULL, NULL);
    LOCKED(syscall(SYS_recvfrom, fd, data, size, flags, NULL, NULL))
    if (done > 0)
        record('<', 0, connection, 0, NULL, data, (size_t)done);
    UNLOCKED
}

ssize_t read(int fd, void *data, size_t size)
{
    uint64_t connection = connection_of(fd);
    if (connection == 0)
        return syscall(SYS_read, fd, data, size);
    LOCKED(syscall(SYS_read, fd, data, size))
    if (done > 0)
        record('<', 0, connection, 0, NULL, data, (size_t)done);
    UNLOCKED
}

/* -- length and room -------------------------------------------------------------------------- */

static int ftruncate_recorded(int fd, off_t length)
{
    if (tracked(fd) == NULL)
        return (int)syscall(SYS_ftruncate, fd, length);
    LOCKED(syscall(SYS_ftruncate, fd, length))
    if (done == 0)
        record('T', tracked(fd)->inode, (uint64_t)length, 0, NULL, NULL, 0);
    UNLOCKED
}

int ftruncate(int fd, off_t length)
{
    return ftruncate_recorded(fd, length);
}

int ftruncate64(int fd, off64_t length)
{
    return ftruncate_recorded(fd, length);
}

static int truncate_recorded(const char *path, off_t length)
{
    char buffer[PATH_MAX];
    struct stat found;
    if (below_root(AT_FDCWD, path, buffer) == NULL)
        return (int)syscall(SYS_truncate, path, length);
    LOCKED(syscall(SYS_truncate, path, length))
    if (done == 0 && stat(path, &found) == 0)
        record('T', found.st_ino, (uint64_t)length, 0, NULL, NULL, 0);
    UNLOCKED
}

int truncate(const char *path, off_t length)
{
    return truncate_recorded(path, length);
}

int truncate64(const char *path, off64_t length)
{
    return truncate_recorded(path, length);
}

static int allocate_recorded(int fd, off_t offset, off_t length)
{
    struct file *file = tracked(fd);
    if (file == NULL)
        return REAL(posix_fallocate64)(fd, offset, length);
    pthread_mutex_lock(&mutex);
    int error = REAL(posix_fallocate64)(fd, offset, length);
    if (error == 0)
        record('A', file->inode, (uint64_t)offset, (uint64_t)length, NULL, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return error;
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    return allocate_recorded(fd, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
    return allocate_recorded(fd, offset, length);
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    if (tracked(fd) == NULL)
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
    LOCKED(syscall(SYS_fallocate, fd, mode, offset, length))
    if (done == 0 && mode == 0)
        record('A', tracked(fd)->inode, (uint64_t)offset, (uint64_t)length, NULL, NULL, 0);
    else if (done == 0)
        unknown("fallocate");
    UNLOCKED
}

/* -- names ------------------------------------------------------------------------------------ */

static int rename_recorded(int from, const char *old, int to, const char *new, unsigned flags)
{
    char old_buffer[PATH_MAX], new_buffer[PATH_MAX];
    struct stat found;
    const char *source = below_root(from, old, old_buffer);
    const char *target = below_root(to, new, new_buffer);
    if (source == NULL && target == NULL)
        return (int)syscall(SYS_renameat2, from, old, to, new, flags);
    LOCKED(syscall(SYS_renameat2, from, old, to, new, flags))
    if (done == 0 && (source == NULL || target == NULL || flags != 0))
        unknown("rename");
    else if (done == 0 && fstatat(to, new, &found, 0) == 0)
        record('R', found.st_ino, 0, 0, source, target, strlen(target));
    UNLOCKED
}

int rename(const char *old, const char *new)
{
    return rename_recorded(AT_FDCWD, old, AT_FDCWD, new, 0);
}

int renameat(int from, const char *old, int to, const char *new)
{
    return rename_recorded(from, old, to, new, 0);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    return rename_recorded(from, old, to, new, flags);
}

static int unlink_recorded(int directory, const char *path, int flags)
{
    char buffer[PATH_MAX];
    const char *inside = below_root(directory, path, buffer);
    if (inside == NULL)
        return (int)syscall(SYS_unlinkat, directory, path, flags);
    LOCKED(syscall(SYS_unlinkat, directory, path, flags))
    if (done == 0)
        record('U', 0, 0, 0, inside, NULL, 0);
    UNLOCKED
}

int unlink(const char *path)
{
    return unlink_recorded(AT_FDCWD, path, 0);
}

int unlinkat(int directory, const char *path, int flags)
{
    return unlink_recorded(directory, path, flags);
}

int rmdir(const char *path)
{
    return unlink_recorded(AT_FDCWD, path, AT_REMOVEDIR);
}

static int mkdir_recorded(int directory, const char *path, mode_t mode)
{
    char buffer[PATH_MAX];
    struct stat found;
    const char *inside = below_root(directory, path, buffer);
    if (inside == NULL)
        return (int)syscall(SYS_mkdirat, directory, path, mode);
    LOCKED(syscall(SYS_mkdirat, directory, path, mode))
    if (done == 0 && fstatat(directory, path, &found, 0) == 0)
        record('D', found.st_ino, 0, 0, inside, NULL, 0);
    UNLOCKED
}

int mkdir(const char *path, mode_t mode)
{
    return mkdir_recorded(AT_FDCWD, path, mode);
}

int mkdirat(int directory, const char *path, mode_t mode)
{
    return mkdir_recorded(directory, path, mode);
}

static void refuse_name(const char *path, const char *name)
{
    char buffer[PATH_MAX];
    if (below_root(AT_FDCWD, path, buffer) != NULL) {
        pthread_mutex_lock(&mutex);
        unknown(name);
        pthread_mutex_unlock(&mutex);
    }
}

static int link_recorded(int from, const char *old, int to, const char *new, int flags)
{
    char old_buffer[PATH_MAX], new_buffer[PATH_MAX];
    struct stat found;
    const char *source = below_root(from, old, old_buffer);
    const char *target = below_root(to, new, new_buffer);
    if (source == NULL && target == NULL)
        return (int)syscall(SYS_linkat, from, old, to, new, flags);
    LOCKED(syscall(SYS_linkat, from, old, to, new, flags))
    if (done == 0 && (source == NULL || target == NULL))
        unknown("link");
    else if (done == 0 && fstatat(to, new, &found, 0) == 0)
        record('L', found.st_ino, 0, 0, target, NULL, 0);
    UNLOCKED
}

int link(const char *old, const char *new)
{
    return link_recorded(AT_FDCWD, old, AT_FDCWD, new, 0);
}

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    return link_recorded(from, old, to, new, flags);
}

int symlink(const char *old, const char *new)
{
    refuse_name(new, "symlink");
    return REAL(symlink)(old, new);
}

/* -- being on disk ---------------------------------------------------------------------------- */

static int sync_recorded(int fd, long call)
{
    struct file *file = tracked(fd);
    if (file == NULL)
        return (int)syscall(call, fd);
    pthread_mutex_lock(&mutex);
    uint64_t inode = file->inode, number = next_sync++;
    record('B', inode, number, 0, file->path, NULL, 0);
    pthread_mutex_unlock(&mutex);
    int result = (int)syscall(call, fd);
    int error = errno;
    if (result == 0) {
        pthread_mutex_lock(&mutex);
        record('S', inode, number, 0, NULL, NULL, 0);
        pthread_mutex_unlock(&mutex);
    }
    errno = error;
    return result;
}

int fsync(int fd)
{
    return sync_recorded(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_recorded(fd, SYS_fdatasync);
}
