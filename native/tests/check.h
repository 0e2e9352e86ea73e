// What native tests need: a check that names its place and ends the program.
#pragma once
#include <cstdio>
#include <cstdlib>

#define CHECK(what)                                                            \
  do {                                                                         \
    if (!(what)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #what); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)
