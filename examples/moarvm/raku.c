/*
 * Starts Debian's Rakudo on the MoarVM that build.sh has built.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static char *const rakudo[] = { MOAR, "--libpath=/usr/share/nqp/lib", "--libpath=/usr/lib/perl6/lib",
                                    "--libpath=/usr/lib/perl6/runtime", "/usr/lib/perl6/runtime/rakudo.moarvm" };
    enum { WORDS = sizeof rakudo / sizeof *rakudo };
    char **words = malloc((WORDS + (size_t)argc) * sizeof *words);
    if (words == NULL)
        return 1;
    memcpy(words, rakudo, sizeof rakudo);
    /* The copied arguments include the NULL at their end. */
    memcpy(words + WORDS, argv + 1, (size_t)argc * sizeof *argv);
    execv(words[0], words);
    perror(words[0]);
    return 1;
}
