# Imported targets for the LibTorch that scripts/setup.sh unpacks (third_party/README.md says why not find_package).
set(DTRAIN_TORCH_DIR ${PROJECT_SOURCE_DIR}/.deps/libtorch/torch CACHE PATH "torch folder of the 2.11.0 wheel")
foreach(library c10 torch_cpu)
  if(NOT EXISTS ${DTRAIN_TORCH_DIR}/lib/lib${library}.so)
    message(FATAL_ERROR "lib${library}.so not found under ${DTRAIN_TORCH_DIR}/lib: run scripts/setup.sh")
  endif()
  add_library(torch::${library} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${library} PROPERTIES
    IMPORTED_LOCATION ${DTRAIN_TORCH_DIR}/lib/lib${library}.so
    IMPORTED_SONAME lib${library}.so
    INTERFACE_INCLUDE_DIRECTORIES
      "${DTRAIN_TORCH_DIR}/include;${DTRAIN_TORCH_DIR}/include/torch/csrc/api/include")
endforeach()
set_property(TARGET torch::c10 PROPERTY INTERFACE_COMPILE_DEFINITIONS _GLIBCXX_USE_CXX11_ABI=1)
set_property(TARGET torch::torch_cpu PROPERTY INTERFACE_COMPILE_DEFINITIONS
  USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
# Our own parallel loops (at::parallel_for) call the OpenMP runtime: the wheel's, since there may be only one.
add_library(torch::gomp SHARED IMPORTED GLOBAL)
set_target_properties(torch::gomp PROPERTIES
  IMPORTED_LOCATION ${DTRAIN_TORCH_DIR}/lib/libgomp.so.1
  IMPORTED_SONAME libgomp.so.1)
set_property(TARGET torch::torch_cpu PROPERTY INTERFACE_LINK_LIBRARIES torch::c10 torch::gomp)
# libtorch_cpu.so names libcudart and libcupti, which are found at run time through its own RPATH.
set_property(TARGET torch::torch_cpu PROPERTY INTERFACE_LINK_OPTIONS
  LINKER:--allow-shlib-undefined LINKER:--no-as-needed)

# One precompiled header for every file that sees tensors. Its users must have the same flags.
add_library(dtrain_torch_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/torch_pch.cpp)
target_link_libraries(dtrain_torch_pch PUBLIC torch::torch_cpu)
target_link_libraries(dtrain_torch_pch PRIVATE dtrain_warnings)
target_compile_options(dtrain_torch_pch PRIVATE -fpch-preprocess -fopenmp)
target_precompile_headers(dtrain_torch_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/torch_pch.h)
