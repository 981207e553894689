# Finds the headers of CUDA and NCCL that our units with CUDA need, and proves that they are complete: the CUDA includes
# of those units compile. A search for single files proves nothing, because headers include others that lie in wheels of
# their own (nv/target, crt/).
#
# Input:  LibTorch_* of FindLibTorch.cmake, COLOSSAL_CUDA.
# Output: COLOSSAL_CUDA_INCLUDE: the folders of the headers, empty if the units cannot be compiled;
#         COLOSSAL_CUDA_HEADERS_PROBLEM: why not and what to do, one line.
set(COLOSSAL_CUDA_UNITS comm/backends/nccl tensor/cuda_graph memory/tiers/cuda_pages)  # each with a no_ file beside it

function(colossal_missing_cuda_header folders out)
  set(includes)
  foreach(unit ${COLOSSAL_CUDA_UNITS})
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/colossal/${unit}.cpp lines REGEX "^#include <.*(cuda|CUDA|NCCL).*>")
    list(APPEND includes ${lines})
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" text)
  string(SHA256 proof "${CMAKE_CXX_COMPILER};${LIBTORCH_ROOT};${folders};${text}")
  if(proof STREQUAL COLOSSAL_CUDA_HEADERS_PROOF)  # parsing them takes 20 s, and a reconfiguration changes nothing
    set(${out} "" PARENT_SCOPE)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/CMakeFiles/CudaHeaders.cpp)
  file(WRITE ${source} "${text}\n")
  set(language "$ENV{LC_ALL}")
  set(ENV{LC_ALL} C)  # the messages are read
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # headers alone are in question
  set(torch ${LIBTORCH_ROOT}/include)
  try_compile(compiles ${CMAKE_BINARY_DIR}/CMakeFiles/CudaHeaders ${source} NO_CACHE
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${folders};${torch};${torch}/torch/csrc/api/include"
    COMPILE_DEFINITIONS -DUSE_DISTRIBUTED -DUSE_C10D_GLOO -DUSE_C10D_NCCL -DUSE_RPC -DAT_PER_OPERATOR_HEADERS -w
    OUTPUT_VARIABLE output)
  set(ENV{LC_ALL} "${language}")
  if(compiles)
    set(missing "")
    set(COLOSSAL_CUDA_HEADERS_PROOF "${proof}" CACHE INTERNAL "For what the headers of CUDA were compiled")
  elseif(output MATCHES "fatal error: '?([^\n:']+)('|:) (No such file|file not found)")
    set(missing "the header ${CMAKE_MATCH_1}")
  else()
    string(REGEX MATCH "error: [^\n]*" missing "${output}")
    set(missing "headers that compile (${missing})")
  endif()
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

set(COLOSSAL_CUDA_INCLUDE)
set(COLOSSAL_CUDA_HEADERS_PROBLEM)
if(LibTorch_CUDA)
  cmake_path(GET LIBTORCH_ROOT PARENT_PATH packages)
  set(hints ${packages}/nvidia/cu13/include ${packages}/nvidia/cuda_runtime/include $ENV{CUDA_HOME}/include
    /usr/local/cuda/include)
  # Another torch, or headers that were installed since.
  foreach(folder cuda_include nccl_include crt_include cccl_include)
    unset(${folder} CACHE)
  endforeach()
  find_path(cuda_include cuda_runtime_api.h HINTS ${hints})
  find_path(nccl_include nccl.h HINTS ${packages}/nvidia/nccl/include ${hints})
  find_path(crt_include crt/host_config.h HINTS ${cuda_include} ${hints} ${packages}/nvidia/cuda_crt/include)
  set(cccl_hints ${cuda_include} ${hints} ${packages}/nvidia/cuda_cccl/include)
  list(TRANSFORM cccl_hints APPEND /cccl OUTPUT_VARIABLE cccl_folders)  # newer wheels and toolkits have nv/ there alone
  find_path(cccl_include nv/target HINTS ${cccl_hints} ${cccl_folders})
  set(folders)
  foreach(folder cuda_include nccl_include crt_include cccl_include)
    if(${folder})
      list(APPEND folders ${${folder}})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  colossal_missing_cuda_header("${folders}" missing)
  if(missing)
    set(remedy "install the CUDA toolkit that this LibTorch was built with, and NCCL's headers")
    if(LibTorch_PYTHON AND LibTorch_CUDA_TOOLKIT)
      set(remedy "${LibTorch_PYTHON} -m pip install \"cuda-toolkit[cccl,crt]==${LibTorch_CUDA_TOOLKIT}\"")
    endif()
    string(CONCAT COLOSSAL_CUDA_HEADERS_PROBLEM "GPUs work with LibTorch's operators, "
      "without NCCL, CUDA graphs and page-locked host memory: missing ${missing}; "
      "to fix it: ${remedy}, then cmake ${CMAKE_BINARY_DIR}")
    if(COLOSSAL_CUDA STREQUAL "ON")
      message(FATAL_ERROR "COLOSSAL_CUDA is ON, but the headers of CUDA are not complete. "
        "${COLOSSAL_CUDA_HEADERS_PROBLEM}")
    endif()
    message(STATUS "CUDA: ${COLOSSAL_CUDA_HEADERS_PROBLEM}")
  else()
    set(COLOSSAL_CUDA_INCLUDE ${folders})
  endif()
endif()
