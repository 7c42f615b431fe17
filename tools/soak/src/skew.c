/* Preloaded into a process, it moves the clock that tells the time of day by SOAK_CLOCK_MS. The clock that measures
   durations stays as it is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*ask)(clockid_t, struct timespec *);

int clock_gettime(clockid_t which, struct timespec *at) {
    static ask system_clock;
    static long long ahead_ns;
    if (!system_clock) {
        const char *text = getenv("SOAK_CLOCK_MS");
        ahead_ns = text ? atoll(text) * 1000000LL : 0;
        system_clock = (ask)dlsym(RTLD_NEXT, "clock_gettime");
    }
    int result = system_clock(which, at);
    if (result == 0 && which == CLOCK_REALTIME) {
        long long sum_ns = at->tv_sec * 1000000000LL + at->tv_nsec + ahead_ns;
        at->tv_sec = sum_ns / 1000000000LL;
        at->tv_nsec = sum_ns % 1000000000LL;
    }
    return result;
}
