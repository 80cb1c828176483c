# Compiler cache (trusting the dependency files, since preprocessing over a precompiled header takes seconds), linker, warnings and sanitizers: what holds for every target of ours.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${CCACHE})
endif()

# lld resolves only what we use of libtorch_cpu; bfd would want the CUDA toolkit's symbols too. (mold 1.10, Debian 12's,
# sometimes writes a file that the loader refuses, and has looped forever on some of ours.)
set(DTRAIN_LINKER lld CACHE STRING "Linker; bfd serves beside a LibTorch with all of its libraries for CUDA")
find_program(LLD ld.${DTRAIN_LINKER} REQUIRED)
add_link_options(-fuse-ld=${DTRAIN_LINKER})

set(DTRAIN_SANITIZE "" CACHE STRING "Sanitizers for our code, e.g. address,undefined")
if(DTRAIN_SANITIZE)
  add_compile_options(-fsanitize=${DTRAIN_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${DTRAIN_SANITIZE})
endif()

option(DTRAIN_WERROR "Warnings are errors; other compilers than g++ 12, and instrumented code, have others" ON)
add_library(dtrain_warnings INTERFACE)
target_compile_options(dtrain_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion $<$<BOOL:${DTRAIN_WERROR}>:-Werror>)
# Bits must not depend on the optimiser: no contraction of a*b+c across statements.
target_compile_options(dtrain_warnings INTERFACE -ffp-contract=off)

# From -O2 to -O3 is a quarter of a compilation; modules that compute ask for -O3 (cmake/Modules.cmake).
string(REPLACE -O3 -O2 CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

# Most of what a file costs to compile is its headers, so that several files of a target are compiled at once. Files of one target
# therefore share the names of their anonymous namespaces. Who edits a file compiles it alone with OFF.
option(DTRAIN_UNITY "Compile several files of a target at once, in a third of the time" ON)
set(CMAKE_UNITY_BUILD ${DTRAIN_UNITY})
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)
