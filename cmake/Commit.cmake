# cmake -DSOURCE=FOLDER -DHEADER=FILE -P Commit.cmake: writes the commit of the source tree as a header. An equal file
# stays untouched, so that what includes it is compiled again only after a commit. A tree without its own repository
# (a tarball, even one unpacked inside somebody else's repository) has the commit "unknown".
set(commit unknown)
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-toplevel
  OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
file(REAL_PATH ${SOURCE} source)
if(status EQUAL 0 AND top STREQUAL source)
  execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} diff --quiet HEAD --
    ERROR_QUIET OUTPUT_QUIET RESULT_VARIABLE modified)
  if(status EQUAL 0)
    set(commit ${found})
  endif()
  if(status EQUAL 0 AND NOT modified EQUAL 0)
    string(APPEND commit -modified)
  endif()
endif()
set(text "// Written by cmake/Commit.cmake.\n#pragma once\ninline constexpr const char* kCommit = \"${commit}\";\n")
if(EXISTS ${HEADER})
  file(READ ${HEADER} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${HEADER} "${text}")
endif()
