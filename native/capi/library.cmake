# libctrbox.so: the C interface with what it needs of the core, and no other symbol. zstd, where it is found, is for
# patches; without it ctrbox_apply_patch answers CTRBOX_UNSUPPORTED.
include(GNUInstallDirs)
file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/native/capi/ctrbox.h version_line REGEX "^#define CTRBOX_VERSION ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" CTRBOX_LIBRARY_VERSION "${version_line}")
file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/native/capi/ctrbox.h abi_line REGEX "^#define CTRBOX_ABI ")
string(REGEX REPLACE "[^0-9]*([0-9]+)" "\\1" CTRBOX_LIBRARY_ABI "${abi_line}")

find_library(CTRBOX_ZSTD_LIBRARY NAMES zstd libzstd.so.1)
set(capi_folder ${CMAKE_CURRENT_SOURCE_DIR}/native/capi)
add_library(ctrbox_c STATIC ${capi_folder}/ctrbox.cpp ${capi_folder}/scorer.cpp ${capi_folder}/weight_file.cpp ${capi_folder}/patch_file.cpp
            ${capi_folder}/whole_file.cpp)
target_link_libraries(ctrbox_c PUBLIC ctrbox_core)
if(NOT CTRBOX_FUZZ)
  target_precompile_headers(ctrbox_c REUSE_FROM ctrbox_core)
endif()
if(CTRBOX_ZSTD_LIBRARY)
  target_compile_definitions(ctrbox_c PRIVATE CTRBOX_ZSTD)
  target_link_libraries(ctrbox_c PUBLIC ${CTRBOX_ZSTD_LIBRARY})
else()
  message(WARNING "libzstd was not found: libctrbox will not apply patches")
endif()

if(CTRBOX_CAPI)
  # The shared library is made of the objects of the static library, so that ctrbox.cpp is compiled once.
  add_library(ctrbox SHARED $<TARGET_OBJECTS:ctrbox_c>)
  target_link_libraries(ctrbox PRIVATE ctrbox_core $<$<BOOL:${CTRBOX_ZSTD_LIBRARY}>:${CTRBOX_ZSTD_LIBRARY}>)
  target_link_options(ctrbox PRIVATE -Wl,--version-script=${capi_folder}/symbols.map)
  set_target_properties(ctrbox PROPERTIES VERSION ${CTRBOX_LIBRARY_VERSION} SOVERSION ${CTRBOX_LIBRARY_ABI}
                        LINKER_LANGUAGE CXX LINK_DEPENDS ${capi_folder}/symbols.map)
endif()

if(CTRBOX_CAPI)
  configure_file(${capi_folder}/ctrbox.pc.in ${CMAKE_CURRENT_BINARY_DIR}/ctrbox.pc @ONLY)
  install(TARGETS ctrbox LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${capi_folder}/ctrbox.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ctrbox.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
