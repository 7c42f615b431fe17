/* Preloaded into a process, it remembers what a sync has made durable: behind each sync of a salvage file, the file is
   copied to the folder SOAK_SYNCED. When the soak kills the process it puts the copies back, and so forgets what was
   never synced, as the end of the machine would. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SALVAGE "/salvage.log"

typedef int (*sync_file)(int);

static int copy(const char *from, const char *to) {
    char block[65536];
    ssize_t length = -1;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (in >= 0 && out >= 0)
        while ((length = read(in, block, sizeof block)) > 0)
            if (write(out, block, length) != length) {
                length = -1;
                break;
            }
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    return length == 0 ? 0 : -1;
}

/* The copy is whole whenever the process is killed: it is renamed when it is written. */
static int remember(int file) {
    const char *folder = getenv("SOAK_SYNCED");
    char link[64], path[PATH_MAX], image[2 * PATH_MAX], fresh[2 * PATH_MAX + 8];
    ssize_t length;
    if (!folder) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    length = readlink(link, path, sizeof path - 1);
    if (length < (ssize_t)strlen(SALVAGE)) return 0;
    path[length] = 0;
    if (strcmp(path + length - strlen(SALVAGE), SALVAGE)) return 0;
    length = snprintf(image, sizeof image, "%s/", folder);
    snprintf(image + length, sizeof image - length, "%s", path);
    for (char *at = image + length; *at; at++)
        if (*at == '/') *at = '%';
    snprintf(fresh, sizeof fresh, "%s.new", image);
    if (copy(path, fresh) || rename(fresh, image)) {
        errno = EIO;
        return -1;
    }
    return 0;
}

int fsync(int file) {
    static sync_file system_sync;
    if (!system_sync) system_sync = (sync_file)dlsym(RTLD_NEXT, "fsync");
    int result = system_sync(file);
    return result ? result : remember(file);
}

int fdatasync(int file) {
    static sync_file system_sync;
    if (!system_sync) system_sync = (sync_file)dlsym(RTLD_NEXT, "fdatasync");
    int result = system_sync(file);
    return result ? result : remember(file);
}
