/*
 * A library that LuaJIT calls from a trace. A debugger stops in `reached`, which is called once, long after the trace was compiled.
 */

int reached(int number);
int visit(int number);

__attribute__((noinline)) int reached(int number) {
  __asm__ volatile("" : "+r"(number));
  return number;
}

int visit(int number) {
  return number == 500 ? reached(number) + 1 : number;
}
