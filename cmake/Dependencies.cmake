# The libraries besides LibTorch (third_party/README.md): Debian's packages, or what scripts/gpu_check.sh --pack collected
# of them, for machines that have neither: headers alone, and the libraries of libcrypto, zlib and zstd.
set(DTRAIN_DEPS_DIR "" CACHE PATH "Folder of scripts/gpu_check.sh --pack; empty: Debian's packages")
find_package(Threads REQUIRED)
if(NOT DTRAIN_DEPS_DIR)
  include(XxHash)
  include(Zstd)
  find_package(ZLIB 1.2 REQUIRED)
  find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
  find_package(CLI11 2.1 REQUIRED)
  find_package(nlohmann_json 3.11 REQUIRED)
  find_package(fmt 9 REQUIRED)
  return()
endif()

# For every target, the precompiled header's too, and before LibTorch's own headers: the wheel brings another fmt.
include_directories(BEFORE SYSTEM ${DTRAIN_DEPS_DIR}/include)
add_compile_definitions(FMT_HEADER_ONLY)
foreach(name CLI11::CLI11 fmt::fmt nlohmann_json::nlohmann_json)
  add_library(${name} INTERFACE IMPORTED GLOBAL)
endforeach()
file(WRITE ${PROJECT_BINARY_DIR}/xxhash.cpp
  "#define XXH_STATIC_LINKING_ONLY\n#define XXH_IMPLEMENTATION\n#include <xxhash.h>\n")
add_library(dtrain_xxhash STATIC ${PROJECT_BINARY_DIR}/xxhash.cpp)
add_library(xxhash::xxhash ALIAS dtrain_xxhash)
add_library(OpenSSL::Crypto STATIC IMPORTED GLOBAL)
add_library(ZLIB::ZLIB SHARED IMPORTED GLOBAL)
set_target_properties(ZLIB::ZLIB PROPERTIES IMPORTED_LOCATION ${DTRAIN_DEPS_DIR}/lib/libz.so.1)
add_library(zstd::zstd SHARED IMPORTED GLOBAL)
set_target_properties(zstd::zstd PROPERTIES IMPORTED_LOCATION ${DTRAIN_DEPS_DIR}/lib/libzstd.so.1)
set_target_properties(OpenSSL::Crypto PROPERTIES IMPORTED_LOCATION ${DTRAIN_DEPS_DIR}/lib/libcrypto.a
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
