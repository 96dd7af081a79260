/* The C++ part of unwinder.c and landing.c. */
#ifndef EXCEPTIONS_H
#define EXCEPTIONS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Throws that number. */
void throw_number(int number);

/*
 * Calls a function with its argument. Returns what it returns, or 1000 more than the number that it throws. `*left` is counted
 * up when the call has been left, in whatever way.
 */
int call_and_catch(int (*function)(int), int argument, int *left);

/* The same without a catch. */
int call_and_clean(int (*function)(int), int argument, int *left);

/* What a landing pad calls that has caught a number. Returns 2000 more than it. */
int caught(void *exception);

#ifdef __cplusplus
}
#endif

#endif
