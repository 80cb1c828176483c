# dtrain_module(PATH [PLAIN] [COMPUTES] LINK ...) makes lib/dtrain/PATH/*.cpp a static library dtrain_PATH. Without PLAIN the
# module sees LibTorch; COMPUTES is for loops over many values. Sub-folders belong to the module unless they are modules themselves.
function(dtrain_torch_flags target)
  target_link_libraries(${target} PUBLIC torch::torch_cpu)
  target_compile_options(${target} PRIVATE -fpch-preprocess -fopenmp)
  target_precompile_headers(${target} REUSE_FROM dtrain_torch_pch)
endfunction()

function(dtrain_module path)
  cmake_parse_arguments(arg "PLAIN;COMPUTES" "" "LINK" ${ARGN})
  string(REPLACE "/internal" "" name ${path})
  string(REPLACE "/" "_" name ${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/dtrain/${path}/*.cpp)
  if(path STREQUAL "checkpoint")
    list(FILTER sources EXCLUDE REGEX "/checkpoint/(format|store)/")
  elseif(path STREQUAL "comm")
    list(FILTER sources EXCLUDE REGEX "/comm/internal/(rendezvous|host)/")
  elseif(path STREQUAL "parallel")
    list(FILTER sources EXCLUDE REGEX "/parallel/pipeline/")
  endif()
  add_library(dtrain_${name} STATIC ${sources})
  target_include_directories(dtrain_${name} PUBLIC ${PROJECT_SOURCE_DIR}/lib)
  target_link_libraries(dtrain_${name} PUBLIC ${arg_LINK} PRIVATE dtrain_warnings)
  if(NOT arg_PLAIN)
    dtrain_torch_flags(dtrain_${name})
  endif()
  if(arg_COMPUTES)
    target_compile_options(dtrain_${name} PRIVATE $<$<CONFIG:Release>:-O3>)
  endif()
endfunction()

# dtrain_embed(TARGET FOLDER TEMPLATE [NAME FILE] ...) adds FOLDER/TEMPLATE.in to TARGET's sources, in which @NAME@ stands for the
# text of FOLDER/FILE.
function(dtrain_embed target folder template)
  while(ARGN)
    list(POP_FRONT ARGN name file)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/${file})
    file(READ ${PROJECT_SOURCE_DIR}/${folder}/${file} ${name})
  endwhile()
  configure_file(${PROJECT_SOURCE_DIR}/${folder}/${template}.in ${PROJECT_BINARY_DIR}/${template} @ONLY)
  target_sources(${target} PRIVATE ${PROJECT_BINARY_DIR}/${template})
endfunction()

# dtrain_kernels_for_each_cpu(PATH OPTION ...) compiles PATH_baseline.cpp, PATH_avx2.cpp and PATH_avx512.cpp for these
# instruction sets; the program chooses when it runs. They see no LibTorch, whose inline functions would be compiled for one
# set and linked into code for all.
function(dtrain_kernels_for_each_cpu path)
  set(options -O3 -fno-math-errno -fno-trapping-math ${ARGN})
  set(avx2 -mavx2 -mfma)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  foreach(set baseline avx2 avx512)
    set_source_files_properties(${path}_${set}.cpp PROPERTIES
      COMPILE_OPTIONS "${options};${${set}}" SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
endfunction()

# libdtrain.so: everything that needs LibTorch, opened by the front end once the command is known to be good.
function(dtrain_shared_library target source)
  add_library(${target} SHARED ${source})
  target_link_libraries(${target} PRIVATE dtrain_commands dtrain_warnings)
  dtrain_torch_flags(${target})
  file(RELATIVE_PATH torch_lib ${CMAKE_LIBRARY_OUTPUT_DIRECTORY} ${DTRAIN_TORCH_DIR}/lib)
  set(search "$ORIGIN:$ORIGIN/${torch_lib}")
  if(DTRAIN_DEPS_DIR)
    string(APPEND search ":${DTRAIN_DEPS_DIR}/lib")
  endif()
  set_target_properties(${target} PROPERTIES OUTPUT_NAME dtrain LIBRARY_OUTPUT_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH ${search})
endfunction()

# dtrain_plugin(TARGET REASON): adds TARGET to DTRAIN_PLUGINS, or, where there is a REASON why it cannot be built, a target that
# fails with it.
set(DTRAIN_PLUGINS "" CACHE INTERNAL "Plugins that can be built here")
function(dtrain_plugin target reason)
  if(NOT reason)
    set(DTRAIN_PLUGINS ${DTRAIN_PLUGINS} ${target} CACHE INTERNAL "")
    return()
  endif()
  message(STATUS "${target} is not built: ${reason}")
  add_custom_target(${target} COMMAND ${CMAKE_COMMAND} -E echo "${target} cannot be built: ${reason}"
                              COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endfunction()
