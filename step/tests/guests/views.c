// Code in memory that is shared and cannot be written where it is executed: a second view is for that. Prints what was computed.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t function(uint64_t);

static function *code;

// The tests find out here where the code is.
__attribute__((noinline)) void ready(void *where)
{
    __asm__ volatile("" ::"r"(where) : "memory");
}

static void *work(void *sum)
{
    for (uint64_t i = 0; i < 10; i++)
        *(uint64_t *)sum += code(i);
    return NULL;
}

int main(void)
{
    int file = memfd_create("code", 0);
    if (file < 0 || ftruncate(file, 4096) != 0)
        return 1;
    unsigned char *view = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    code = (function *)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    // lea rax, [rdi + rdi * 2]; add rax, 1; ret
    memcpy(view, "\x48\x8d\x04\x7f\x48\x83\xc0\x01\xc3", 9);
    ready((void *)code);
    uint64_t sums[4] = {0};
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, &sums[i]);
    work(&sums[3]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d %d %d %d\n", (int)sums[0], (int)sums[1], (int)sums[2], (int)sums[3]);
    fflush(stdout);
    // A child has no breakpoints.
    pid_t child = fork();
    if (child == 0)
        _exit((int)code(5));
    int status;
    waitpid(child, &status, 0);
    printf("%d, first byte %x\n", WEXITSTATUS(status), view[0]);
    return 0;
}
