# dtrain_module(PATH [PLAIN] LINK ...): lib/dtrain/PATH/*.cpp as a static library dtrain_PATH.
# Without PLAIN the module sees LibTorch. Sub-folders belong to the module unless they are modules themselves.
function(dtrain_torch_flags target)
  target_link_libraries(${target} PUBLIC torch::torch_cpu)
  target_compile_options(${target} PRIVATE -fpch-preprocess -fopenmp)
  target_precompile_headers(${target} REUSE_FROM dtrain_torch_pch)
endfunction()

function(dtrain_module path)
  cmake_parse_arguments(arg "PLAIN" "" "LINK" ${ARGN})
  string(REPLACE "/" "_" name ${path})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lib/dtrain/${path}/*.cpp)
  if(path STREQUAL "checkpoint")
    list(FILTER sources EXCLUDE REGEX "/checkpoint/(format|store)/")
  elseif(path STREQUAL "parallel")
    list(FILTER sources EXCLUDE REGEX "/parallel/pipeline/")
  endif()
  add_library(dtrain_${name} STATIC ${sources})
  target_include_directories(dtrain_${name} PUBLIC ${PROJECT_SOURCE_DIR}/lib)
  target_link_libraries(dtrain_${name} PUBLIC ${arg_LINK} PRIVATE dtrain_warnings)
  if(NOT arg_PLAIN)
    dtrain_torch_flags(dtrain_${name})
  endif()
endfunction()

# libdtrain.so: everything that needs LibTorch, opened by the front end once the command is known to be good.
function(dtrain_shared_library)
  add_library(dtrain_runtime SHARED ${PROJECT_SOURCE_DIR}/lib/dtrain/runtime.cpp)
  target_link_libraries(dtrain_runtime PRIVATE dtrain_train dtrain_warnings)
  dtrain_torch_flags(dtrain_runtime)
  file(RELATIVE_PATH torch_lib ${CMAKE_LIBRARY_OUTPUT_DIRECTORY} ${DTRAIN_TORCH_DIR}/lib)
  set_target_properties(dtrain_runtime PROPERTIES OUTPUT_NAME dtrain
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN:$ORIGIN/${torch_lib}")
endfunction()
