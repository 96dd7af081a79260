/* An object as compilers make it, before it is linked: two functions, lines, and unwind tables. NAME(x) makes its names. */
#define PASTE(a, b) a##_##b
#define JOIN(a, b) PASTE(a, b)
#define NAME(x) JOIN(VARIANT, x)

unsigned long NAME(alpha)(unsigned long n) {
    return n * 3 + 1;
}

unsigned long NAME(beta)(unsigned long n) {
    unsigned long sum = 0;
    while (n--) sum ^= n * sum + 7;
    return sum;
}
