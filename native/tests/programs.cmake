# The programs that ctest runs. Each native/tests/*.cpp has a main() of its own and is one program.
#
# The address sanitizer looks for leaks at the end of each process, and on ARM GCC's takes 4 s of a core for that, however
# little was allocated: 100 s for all tests. Under it the tests therefore share a few programs, which call one main() after
# the other and print the name of each test first.
file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/native/tests/*.cpp)
set(shared_programs 4)

# Loops over millions of numbers: optimized they save more time than the optimizer takes. The header that is read once was
# made without optimization.
if(CTRBOX_SANITIZE MATCHES "address|undefined")
  set(long_loops native/tests/test_hash_index.cpp native/tests/test_numbers.cpp)
  set_source_files_properties(${long_loops} PROPERTIES COMPILE_OPTIONS -O1 SKIP_PRECOMPILE_HEADERS ON)
endif()

function(add_test_program name)
  add_executable(${name} ${ARGN})
  get_property(first GLOBAL PROPERTY ctrbox_first_test_program)
  if(first)
    target_precompile_headers(${name} REUSE_FROM ${first})
  else()
    target_precompile_headers(${name} PRIVATE ${read_once})
    set_property(GLOBAL PROPERTY ctrbox_first_test_program ${name})
  endif()
  target_link_libraries(${name} PRIVATE ctrbox_flags $<$<TARGET_EXISTS:ctrbox_c>:ctrbox_c>)
  add_test(NAME ${name} COMMAND ${name})
endfunction()

if(NOT CTRBOX_SANITIZE MATCHES "address")
  foreach(source IN LISTS test_sources)
    cmake_path(GET source STEM name)
    add_test_program(${name} ${source})
  endforeach()
  return()
endif()

set(made ${CMAKE_CURRENT_BINARY_DIR}/shared_programs)
math(EXPR last "${shared_programs} - 1")
set(number 0)
foreach(source IN LISTS test_sources)
  cmake_path(GET source STEM name)
  math(EXPR program "${number} % ${shared_programs}")
  math(EXPR number "${number} + 1")
  # The label gives main() another symbol; for the compiler it stays main(), which may end without a return.
  file(CONFIGURE OUTPUT ${made}/${name}.cpp CONTENT "int main() __asm__(\"${name}_main\");\n#include \"${source}\"\n")
  get_source_file_property(options ${source} COMPILE_OPTIONS)
  if(options)
    set_source_files_properties(${made}/${name}.cpp PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
  endif()
  list(APPEND sources_${program} ${made}/${name}.cpp)
  string(APPEND declared_${program} "extern \"C\" int ${name}_main();\n")
  string(APPEND called_${program} "  std::puts(\"== ${name}\");\n  if (${name}_main() != 0) return 1;\n")
endforeach()
foreach(program RANGE ${last})
  file(CONFIGURE OUTPUT ${made}/run_${program}.cpp CONTENT
    "#include <cstdio>\n${declared_${program}}int main() {\n  std::setvbuf(stdout, nullptr, _IOLBF, 0);\n${called_${program}}  return 0;\n}\n")
  add_test_program(native_tests_${program} ${made}/run_${program}.cpp ${sources_${program}})
endforeach()
