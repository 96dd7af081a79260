#include "exceptions.h"

#include <cxxabi.h>

namespace {

struct Leaving {
  int *left;
  ~Leaving() { ++*left; }
};

}  // namespace

void throw_number(int number) { throw number; }

int call_and_clean(int (*function)(int), int argument, int *left) {
  Leaving leaving{left};
  return function(argument);
}

int call_and_catch(int (*function)(int), int argument, int *left) {
  try {
    return call_and_clean(function, argument, left);
  } catch (int number) {
    return 1000 + number;
  }
}

int caught(void *exception) {
  int number = *static_cast<int *>(abi::__cxa_begin_catch(exception));
  abi::__cxa_end_catch();
  return 2000 + number;
}
