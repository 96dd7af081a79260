// Burns processor time with a secret on its stack and another one in a register.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static __attribute__((noinline)) void burn(char *stack, uint64_t in_register, long times)
{
    __asm__ volatile("mov %1, %%r12\n"
                     "1: dec %0\n"
                     "jnz 1b\n"
                     : "+r"(times)
                     : "r"(in_register), "r"(stack)
                     : "r12", "memory", "cc");
}

int main(int argc, char **argv)
{
    // The secrets are in no file: each byte is one less here.
    char on_stack[64] = "PM.UIF.TUBDL", in_register[9] = "SFHJTUFS";
    for (size_t at = 0; on_stack[at]; at++)
        on_stack[at]--;
    for (size_t at = 0; in_register[at]; at++)
        in_register[at]--;
    uint64_t word;
    memcpy(&word, in_register, sizeof word);
    burn(on_stack, word, argc > 1 ? atol(argv[1]) : 100000000);
    return on_stack[0] == 'X';
}
