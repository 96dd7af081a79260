/* Matrix multiplication, for which oneDNN compiles kernels, for so many seconds. usage: dnnl SECONDS */
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    enum { N = 256 };
    float *a = calloc(N * N, sizeof *a), *b = calloc(N * N, sizeof *b), *c = calloc(N * N, sizeof *c);
    if (argc != 2 || !a || !b || !c) return 1;
    printf("pid %d\n", (int)getpid());
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double end = now.tv_sec + now.tv_nsec / 1e9 + atof(argv[1]);
    do {
        if (dnnl_sgemm('N', 'N', N, N, N, 1.0f, a, N, b, N, 0.0f, c, N) != dnnl_success) return 1;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec + now.tv_nsec / 1e9 < end);
    return 0;
}
