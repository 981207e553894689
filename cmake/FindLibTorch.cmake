# Finds LibTorch without find_package(Torch), which drags in CUDA version checks, MKL probes and legacy modules.
#
# Input:  LIBTORCH_ROOT (cache or environment): the folder that holds include/ and lib/ (site-packages/torch of a wheel).
#         Without it: the torch importable by .venv/bin/python, then by python3.
# Output: target LibTorch::torch; LibTorch_VERSION; LibTorch_CUDA (the build carries CUDA kernels); LibTorch_NCCL_INCLUDE: the
#         folders that code against c10d's NCCL backend and torch's CUDA graphs needs, empty where one is missing; LibTorch_CUDART: the CUDA runtime beside it.
if(NOT LIBTORCH_ROOT AND DEFINED ENV{LIBTORCH_ROOT})
  set(LIBTORCH_ROOT $ENV{LIBTORCH_ROOT})
endif()
if(NOT LIBTORCH_ROOT)
  foreach(python ${PROJECT_SOURCE_DIR}/.venv/bin/python python3)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE found RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed)
      set(LIBTORCH_ROOT ${found})
      break()
    endif()
  endforeach()
endif()
set(LIBTORCH_ROOT "${LIBTORCH_ROOT}" CACHE PATH "Folder of LibTorch: include/ and lib/" FORCE)

set(header ${LIBTORCH_ROOT}/include/torch/headeronly/version.h)
if(NOT EXISTS ${header})
  set(header ${LIBTORCH_ROOT}/include/torch/csrc/api/include/torch/version.h)
endif()
if(EXISTS ${header})
  file(STRINGS ${header} lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${lines}")
endif()
find_library(LibTorch_C10 c10 PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_CPU torch_cpu PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LIBTORCH_ROOT LibTorch_CPU LibTorch_C10
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Run ./colossal.sh, which installs it, or pass -DLIBTORCH_ROOT=<site-packages>/torch.")
if(LibTorch_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${LibTorch_VERSION} at ${LIBTORCH_ROOT} is too old: 2.11 to 2.14 are supported.")
endif()

set(libraries ${LIBTORCH_ROOT}/lib/libtorch.so ${LibTorch_CPU})
set(LibTorch_CUDA OFF)
if(EXISTS ${LIBTORCH_ROOT}/lib/libtorch_cuda.so)
  set(LibTorch_CUDA ON)  # registers its kernels in static initialisers: the linker must not drop it
  list(APPEND libraries ${LIBTORCH_ROOT}/lib/libtorch_cuda.so ${LIBTORCH_ROOT}/lib/libc10_cuda.so)
  # The wheels that come with torch hold the headers of NCCL and of the CUDA runtime, but for crt/, which the runtime's own
  # headers include: that is in a toolkit, or in triton, another of torch's wheels. A set with a hole is no set.
  set(packages ${LIBTORCH_ROOT}/..)
  find_path(nccl_include nccl.h HINTS ${packages}/nvidia/nccl/include)
  find_path(cuda_include cuda_runtime_api.h HINTS
    ${packages}/nvidia/cu13/include ${packages}/nvidia/cuda_runtime/include /usr/local/cuda/include)
  find_path(crt_include crt/host_config.h HINTS
    ${cuda_include} /usr/local/cuda/include ${packages}/triton/backends/nvidia/include)
  # Inline functions of torch's CUDA headers call the runtime; the wheel that torch itself loads comes first.
  find_library(cudart NAMES libcudart.so.13 libcudart.so.12 cudart HINTS
    ${packages}/nvidia/cu13/lib ${packages}/nvidia/cuda_runtime/lib /usr/local/cuda/lib64)
  if(cudart)
    set(LibTorch_CUDART ${cudart})
    list(APPEND libraries ${cudart})
    get_filename_component(cudart_folder ${cudart} DIRECTORY)
  endif()
  if(nccl_include AND cuda_include AND crt_include AND cudart)
    set(LibTorch_NCCL_INCLUDE ${nccl_include} ${cuda_include} ${crt_include})
  endif()
endif()
list(APPEND libraries ${LibTorch_C10})

add_library(LibTorch::torch INTERFACE IMPORTED)
target_include_directories(LibTorch::torch SYSTEM INTERFACE
  ${LIBTORCH_ROOT}/include ${LIBTORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(LibTorch::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC AT_PER_OPERATOR_HEADERS)
# The C++ library first: libtorch.so of 2.11 with CUDA has parts of std::filesystem for everybody to see, which end in a null pointer.
target_link_libraries(LibTorch::torch INTERFACE -Wl,--no-as-needed stdc++ ${libraries} -Wl,--as-needed Threads::Threads)
target_link_options(LibTorch::torch INTERFACE -Wl,-rpath,${LIBTORCH_ROOT}/lib)
if(cudart_folder)
  target_link_options(LibTorch::torch INTERFACE -Wl,-rpath,${cudart_folder})
endif()
message(STATUS "LibTorch ${LibTorch_VERSION} at ${LIBTORCH_ROOT} (CUDA: ${LibTorch_CUDA})")
