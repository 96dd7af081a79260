/* An object whose constructor and destructor call the program. The loader holds its lock meanwhile. */
void while_held(void);

__attribute__((constructor)) static void begins(void) {
  while_held();
}

__attribute__((destructor)) static void ends(void) {
  while_held();
}
