// Does all that a tracer could change, and prints what came of it: the same on every run.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <ucontext.h>

extern char **environ;

static volatile uint64_t sum;
// Calls of `mix`, by all processes.
static uint64_t *mixes;

// What the tests set breakpoints at.
__attribute__((noinline)) uint64_t mix(uint64_t x)
{
    __atomic_fetch_add(mixes, 1, __ATOMIC_RELAXED);
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 29;
    return x;
}

__attribute__((noinline)) uint64_t deep(uint64_t n, uint64_t x)
{
    char room[64];
    memset(room, (int)n, sizeof room);
    if (n == 0)
        return mix(x);
    return deep(n - 1, x + (uint64_t)room[n % 64]) + 1;
}

static volatile sig_atomic_t handled, last_value, code;

static void on_signal(int signo, siginfo_t *info, void *context)
{
    (void)signo, (void)context;
    handled = handled + 1;
    last_value = info->si_value.sival_int;
    code = info->si_code;
    sum += mix((uint64_t)handled);
}

static void handle(int signo, int flags)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};
    sigaction(signo, &action, NULL);
}

static int *volatile nowhere;
static sigjmp_buf back;

static void on_fault(int signo)
{
    siglongjmp(back, signo);
}

static void signals(void)
{
    handled = 0;
    handle(SIGUSR1, 0);
    for (int i = 0; i < 20; i++) {
        union sigval value = {.sival_int = i * 3};
        sigqueue(getpid(), SIGUSR1, value);
    }
    printf("signals %d last %d code %d\n", (int)handled, (int)last_value, (int)code);
    signal(SIGUSR2, SIG_IGN);
    for (int i = 0; i < 5; i++)
        raise(SIGUSR2);
    // A fault, which the handler gets out of.
    signal(SIGSEGV, on_fault);
    if (sigsetjmp(back, 1) == 0)
        *nowhere = 1;
    else
        printf("a fault\n");
    // Where it is blocked or ignored, the kernel takes the handler away from who is stepped.
    handle(SIGTRAP, SA_NODEFER);
    int before = handled;
    __asm__ volatile("int3");
    raise(SIGTRAP);
    printf("traps %d\n", handled - before);
    static char other[1 << 16];
    stack_t stack = {.ss_sp = other, .ss_size = sizeof other};
    sigaltstack(&stack, NULL);
    handle(SIGUSR1, SA_ONSTACK);
    raise(SIGUSR1);
    printf("sum %llx\n", (unsigned long long)sum);
}

static jmp_buf target;
static void (*volatile leave)(jmp_buf, int) = longjmp;

__attribute__((noinline)) static void jump(int n)
{
    if (n <= 0)
        leave(target, 7);
    else
        jump(n - 1);
    sum = sum + 1;
}

static void jumps(void)
{
    for (volatile int i = 0; i < 5; i++) {
        int came = setjmp(target);
        if (came == 0)
            jump(i);
        sum += (uint64_t)came + deep(3, sum);
    }
    printf("jumps %llx\n", (unsigned long long)sum);
}

static void flags(void)
{
    uint64_t pushed = 0, at_call = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t now, r11;
        __asm__ volatile("pushfq\n\tpopq %0" : "=r"(now)::"memory");
        long nr = SYS_getpid;
        __asm__ volatile("syscall\n\tmovq %%r11, %1" : "+a"(nr), "=r"(r11)::"rcx", "r11", "memory");
        pushed |= now & 0x100;
        at_call |= r11 & 0x100;
    }
    char from[200], to[200];
    for (int i = 0; i < 200; i++)
        from[i] = (char)i;
    void *d = to, *s = from;
    size_t n = sizeof to;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n)::"memory");
    printf("flags %llx %llx, copied %d\n", (unsigned long long)pushed, (unsigned long long)at_call, memcmp(from, to, 200) == 0);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t total;

static void *work(void *number)
{
    uint64_t mine = (uint64_t)(uintptr_t)number;
    for (int i = 0; i < 20; i++)
        mine = mix(mine) + deep(2, mine);
    pthread_mutex_lock(&lock);
    total += mine;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void threads(void)
{
    pthread_t all[6];
    for (uintptr_t i = 0; i < 6; i++)
        pthread_create(&all[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 6; i++)
        pthread_join(all[i], NULL);
    printf("threads %llx\n", (unsigned long long)total);
}

static void children(void)
{
    fflush(stdout);
    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit((int)(mix((uint64_t)i) & 63));
        int status;
        waitpid(child, &status, 0);
        printf("child %d: %x\n", i, status);
        fflush(stdout);
    }
    pid_t child = vfork();
    if (child == 0)
        _exit((int)(mix(77) & 63));
    int status;
    waitpid(child, &status, 0);
    printf("vfork: %x\n", status);
    char *arguments[] = {"sh", "-c", "exit 9", NULL};
    posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ);
    waitpid(child, &status, 0);
    printf("spawned: %x\n", status);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        kill(getpid(), SIGTERM);
    }
    waitpid(child, &status, WUNTRACED);
    printf("stopped: %x\n", status);
    kill(child, SIGCONT);
    waitpid(child, &status, 0);
    printf("terminated: %x\n", status);
}

static int ends[2];
static pid_t reader;

// Sends a signal once the first thread waits for the pipe, and fills the pipe once it was handled.
static void *later(void *thread)
{
    char path[64], text[16] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", reader);
    while (strncmp(text, "0 ", 2) != 0) {
        FILE *file = fopen(path, "r");
        if (file == NULL || fgets(text, sizeof text, file) == NULL)
            abort();
        fclose(file);
    }
    int before = handled;
    pthread_kill((pthread_t)(uintptr_t)thread, SIGUSR1);
    while (handled == before)
        sched_yield();
    if (write(ends[1], "x", 1) != 1)
        abort();
    return NULL;
}

// A system call that a signal interrupts: restarted, and not.
static void calls(void)
{
    reader = getpid();
    for (int restart = 0; restart < 2; restart++) {
        if (pipe(ends) != 0)
            abort();
        handle(SIGUSR1, restart ? SA_RESTART : 0);
        pthread_t thread;
        pthread_create(&thread, NULL, later, (void *)(uintptr_t)pthread_self());
        char byte;
        ssize_t got = read(ends[0], &byte, 1);
        printf("read %zd, %s\n", got, got < 0 ? strerrorname_np(errno) : "well");
        pthread_join(thread, NULL);
    }
}

static ucontext_t here, there;

static void coroutine(void)
{
    for (int i = 0; i < 3; i++) {
        sum += deep(2, sum);
        swapcontext(&there, &here);
    }
}

static void coroutines(void)
{
    static char stack[1 << 16];
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    there.uc_link = &here;
    makecontext(&there, coroutine, 0);
    for (int i = 0; i < 4; i++) {
        swapcontext(&here, &there);
        sum += deep(1, sum);
    }
    printf("coroutines %llx\n", (unsigned long long)sum);
}

// By a thread that is not the first one.
static void *other_program(void *nothing)
{
    execl("/proc/self/exe", "busy", "again", NULL);
    return nothing;
}

int main(int count, char **arguments)
{
    if (count > 1 && strcmp(arguments[1], "again") == 0) {
        static uint64_t again;
        mixes = &again;
        printf("again %llx\n", (unsigned long long)deep(5, 1));
        return 3;
    }
    mixes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    flags();
    signals();
    jumps();
    threads();
    coroutines();
    children();
    calls();
    printf("mixes %llu\n", (unsigned long long)*mixes);
    fflush(stdout);
    pthread_t thread;
    pthread_create(&thread, NULL, other_program, NULL);
    pthread_join(thread, NULL);
    return 1;
}
