/* A wrong wall clock for one program that is not Python, by LD_PRELOAD: the shift, in seconds, is the eight bytes of the file
   that is named as the program's last argument is, with ".clock" behind it. It is read at each question, so that the clock can
   be set while the program runs; without the file nothing is shifted. The monotonic clocks go on as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none;
static const volatile int64_t *shift = &none;
static int (*right)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    static char words[65536];
    *(void **)&right = dlsym(RTLD_NEXT, "clock_gettime");
    int told = open("/proc/self/cmdline", O_RDONLY);
    ssize_t size = read(told, words, sizeof words - 16);
    close(told);
    if (size < 2)
        return;
    char *last = words + size - 1;
    while (last > words && last[-1])
        last--;
    int file = open(strcat(last, ".clock"), O_RDONLY);
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        shift = found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = right(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *shift;
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
