/* What the two files of test_dl share. */
#ifndef TEST_DL_H
#define TEST_DL_H

#include "jitsym_dl.h"

#ifdef __cplusplus
extern "C"
#endif
jitsym_status other_file_registers(jitsym *session, const jitsym_code *code);

#ifdef __cplusplus
extern "C"
#endif
jitsym_status other_file_asks_why(char *buffer, size_t size);

#endif
