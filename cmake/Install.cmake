# cmake --install: programs, libraries, configurations, scripts and documents. Programs find the libraries through
# $ORIGIN, and a node needs nothing else than glibc and libstdc++ (docs/guide/install.md), so that the folder can be moved.
set(libraries lib/dtrain)  # a folder of our own: the loader must not offer our libgomp to other programs
set(papers share/dtrain)
set(torch ${DTRAIN_TORCH_DIR}/..)

set(built dtrain dtrun dtrain_runtime)
foreach(plugin dtrain_sentencepiece dtrain_unicode)
  if(TARGET ${plugin})
    list(APPEND built ${plugin})
  endif()
endforeach()
install(TARGETS ${built}
  RUNTIME_DEPENDENCIES PRE_INCLUDE_REGEXES "^lib(fmt|xxhash|crypto|z|zstd|sentencepiece|sentencepiece_train|pcre2-8|icuuc|icudata)\\.so"
  PRE_EXCLUDE_REGEXES "."
  RUNTIME DESTINATION bin LIBRARY DESTINATION ${libraries})

# dtrain_install_rpath(TARGET RPATH): a build's search path leads to .deps, and from where a library is installed to a
# folder that may be anybody's. (CMake exchanges it by itself only after it ended the build's with the current folder.)
function(dtrain_install_rpath target rpath)
  get_target_property(build_rpath ${target} INSTALL_RPATH)
  install(CODE "
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${libraries}/$<TARGET_FILE_NAME:${target}>\")
    if(EXISTS \"\${file}\")
      file(RPATH_CHANGE FILE \"\${file}\" OLD_RPATH [[${build_rpath}]] NEW_RPATH [[${rpath}]])
    endif()")
endfunction()

# What most people need: a plugin that nobody will load takes its time to build.
add_custom_target(programs DEPENDS ${built})
add_custom_target(installed_parts DEPENDS ${built})  # all but the tests
dtrain_install_rpath(dtrain_runtime "$ORIGIN:$ORIGIN/torch/lib")
set(rpath_of_dtrain_cuda "$ORIGIN:$ORIGIN/torch/lib:$ORIGIN/nvidia/nccl/lib:$ORIGIN/nvidia/cu13/lib")
set(rpath_of_dtrain_mpi "$ORIGIN:$ORIGIN/torch/lib")
foreach(plugin ${DTRAIN_PLUGINS})
  install(TARGETS ${plugin} LIBRARY DESTINATION ${libraries} OPTIONAL)  # if it was built
  add_dependencies(installed_parts ${plugin})
  dtrain_install_rpath(${plugin} ${rpath_of_${plugin}})
endforeach()

# As they lie in .deps, where their own search paths lead.
set(torch_libraries libc10.so libtorch_cpu.so libgomp.so.1)
set(nvidia_libraries cu13/lib/libcudart.so.13 cu13/lib/libcupti.so.13)
if(dtrain_cuda IN_LIST DTRAIN_PLUGINS AND EXISTS ${torch}/cuda-from.txt)  # after scripts/setup.sh --cuda
  add_dependencies(programs dtrain_cuda)
  list(APPEND torch_libraries libc10_cuda.so libtorch_cuda.so libtorch_nvshmem.so libcaffe2_nvrtc.so)
  file(GLOB nvidia_libraries RELATIVE ${torch}/nvidia ${torch}/nvidia/*/lib/*.so*)
endif()
list(TRANSFORM torch_libraries PREPEND ${DTRAIN_TORCH_DIR}/lib/)
install(PROGRAMS ${torch_libraries} DESTINATION ${libraries}/torch/lib)
foreach(library ${nvidia_libraries})
  get_filename_component(folder ${library} DIRECTORY)
  install(PROGRAMS ${torch}/nvidia/${library} DESTINATION ${libraries}/nvidia/${folder})
endforeach()

install(FILES README.md DESTINATION ${papers})
install(DIRECTORY configs docs DESTINATION ${papers})
install(DIRECTORY scripts/slurm DESTINATION ${papers}/scripts USE_SOURCE_PERMISSIONS OPTIONAL)
install(PROGRAMS scripts/launch.sh scripts/train_distributed.sh DESTINATION ${papers}/scripts OPTIONAL)
install(FILES third_party/README.md DESTINATION ${papers}/third_party)
file(GLOB licences ${torch}/*.dist-info)
install(DIRECTORY ${licences} DESTINATION ${papers}/third_party)
foreach(package libfmt9 libxxhash0 libssl3 zlib1g libzstd1 libsentencepiece0 libpcre2-8-0 libicu72)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${papers}/third_party/${package} OPTIONAL)
endforeach()
