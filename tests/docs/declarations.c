/* The declarations in docs/reference.md are those of the header: a compiler refuses two that differ. */
#include <jitsym.h>

#include "fragments.c"

int main(void) {
    return 0;
}
