/* The declarations in docs/reference.md are those of the headers: a compiler refuses two that differ. */
#include <jitsym_control.h>
#include <jitsym_region.h>

#include "fragments.c"

int main(void) {
    return 0;
}
