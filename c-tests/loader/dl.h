/* What dl.c and dl_other.cc share. */
#ifndef DL_H
#define DL_H

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
