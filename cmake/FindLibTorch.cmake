# Finds LibTorch without find_package(Torch), which drags in CUDA version checks, MKL probes and legacy modules.
#
# Input:  LIBTORCH_ROOT (cache or environment): the folder that holds include/ and lib/ (site-packages/torch of a
#         wheel). Without it: the torch importable by .venv/bin/python, then by python3.
#         COLOSSAL_CUDA: AUTO (default) links libtorch_cuda.so if a program links against it, ON makes a failure an
#         error, OFF never links it.
# Output: target LibTorch::torch; LibTorch_VERSION; LibTorch_CUDA (libtorch_cuda.so is linked); LibTorch_CUDART: the
#         CUDA runtime that it uses;
#         LibTorch_CUDA_PROBLEM: why libtorch_cuda.so is not linked and what to do, one line, empty if it is;
#         LibTorch_PYTHON: the Python that owns this torch, empty for an unpacked LibTorch; LibTorch_CUDA_TOOLKIT: the
#         version of CUDA's wheels that this torch asks for, empty if it names none.
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
set(COLOSSAL_CUDA "AUTO" CACHE STRING "Use LibTorch's CUDA build: AUTO, ON (a failed check is an error) or OFF")
set_property(CACHE COLOSSAL_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT COLOSSAL_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "COLOSSAL_CUDA must be AUTO, ON or OFF: got ${COLOSSAL_CUDA}")
endif()

set(header ${LIBTORCH_ROOT}/include/torch/headeronly/version.h)
if(NOT EXISTS ${header})
  set(header ${LIBTORCH_ROOT}/include/torch/csrc/api/include/torch/version.h)
endif()
if(EXISTS ${header})
  file(STRINGS ${header} lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9]*([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" LibTorch_VERSION "${lines}")
endif()
foreach(library LibTorch_C10 LibTorch_CPU cudart)  # another LIBTORCH_ROOT has libraries of its own
  unset(${library} CACHE)
endforeach()
find_library(LibTorch_C10 c10 PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(LibTorch_CPU torch_cpu PATHS ${LIBTORCH_ROOT}/lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LIBTORCH_ROOT LibTorch_CPU LibTorch_C10
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Run ./colossal.sh, which installs it, or pass -DLIBTORCH_ROOT=<site-packages>/torch.")
if(LibTorch_VERSION VERSION_LESS 2.11 OR LibTorch_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "LibTorch must be 2.11 to 2.15: got ${LibTorch_VERSION} at ${LIBTORCH_ROOT}; "
    "set LIBTORCH_ROOT to another one")
endif()

# The Python that can mend this torch: a wheel lies in <environment>/lib/pythonX.Y/site-packages/torch.
cmake_path(ABSOLUTE_PATH LIBTORCH_ROOT NORMALIZE OUTPUT_VARIABLE libtorch_root)
cmake_path(GET libtorch_root PARENT_PATH packages)
set(LibTorch_PYTHON)
if(EXISTS ${packages}/../../../bin/python)
  cmake_path(SET LibTorch_PYTHON NORMALIZE ${packages}/../../../bin/python)
elseif(packages MATCHES "(site|dist)-packages$")
  set(LibTorch_PYTHON python3)
endif()
set(LibTorch_CUDA_TOOLKIT)
file(GLOB metadata ${packages}/torch-*.dist-info/METADATA)
if(metadata)
  list(GET metadata 0 metadata)
  file(STRINGS ${metadata} toolkit REGEX "^Requires-Dist: cuda-toolkit\\[.*\\]==")
  if(toolkit MATCHES "==([0-9.]+)")
    set(LibTorch_CUDA_TOOLKIT ${CMAKE_MATCH_1})
  endif()
endif()

# Links a program against libtorch_cuda.so. GNU ld follows what a library needs, as the loader does at run time; lld
# does not. Sets `out` to "" or to what is missing.
function(libtorch_missing_for_cuda out)
  set(language "$ENV{LC_ALL}")
  set(ENV{LC_ALL} C)  # the messages are read
  set(source "${CMAKE_BINARY_DIR}/CMakeFiles/LibTorchCuda.cpp")
  file(WRITE ${source} "int main() { return 0; }\n")
  try_compile(links ${CMAKE_BINARY_DIR}/CMakeFiles/LibTorchCuda ${source} NO_CACHE
    LINK_OPTIONS -fuse-ld=bfd -Wl,--no-as-needed
    LINK_LIBRARIES ${LIBTORCH_ROOT}/lib/libtorch_cuda.so ${LIBTORCH_ROOT}/lib/libc10_cuda.so
      ${LibTorch_CPU} ${LibTorch_C10}
    OUTPUT_VARIABLE output)
  set(ENV{LC_ALL} "${language}")
  string(REGEX MATCHALL "warning: [^ ]+, needed by" needed "${output}")
  list(TRANSFORM needed REPLACE "warning: ([^ ]+), needed by" "\\1")
  list(REMOVE_DUPLICATES needed)
  list(JOIN needed ", " missing)
  if(NOT missing AND NOT links)
    string(REGEX MATCH "(undefined reference to [^\n]*|error: [^\n]*|cannot find [^\n]*)" missing "${output}")
    if(NOT missing)
      set(missing "a program that links")
    endif()
  endif()
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# Not libtorch.so: that of a CUDA build needs all of CUDA's libraries, and has nothing of its own.
set(libraries ${LibTorch_CPU} ${LibTorch_C10})
set(LibTorch_CUDA OFF)
set(LibTorch_CUDART)
set(LibTorch_CUDA_PROBLEM)
if(COLOSSAL_CUDA STREQUAL "OFF")
  string(CONCAT LibTorch_CUDA_PROBLEM "not linked, because COLOSSAL_CUDA is OFF; "
    "configure with -DCOLOSSAL_CUDA=AUTO, or run COLOSSAL_TORCH=cuda ./colossal.sh")
elseif(NOT EXISTS ${LIBTORCH_ROOT}/lib/libtorch_cuda.so)
  string(CONCAT LibTorch_CUDA_PROBLEM "this LibTorch is a CPU build; set LIBTORCH_ROOT to a CUDA build, "
    "or remove it (with .venv: remove that folder) and run COLOSSAL_TORCH=cuda ./colossal.sh")
else()
  libtorch_missing_for_cuda(missing)
  if(missing)
    set(remedy "install the missing libraries of CUDA")
    if(LibTorch_PYTHON)
      set(remedy "${LibTorch_PYTHON} -m pip install torch==${LibTorch_VERSION}")
    endif()
    string(CONCAT LibTorch_CUDA_PROBLEM "libtorch_cuda.so is not linked, so GPUs are not used: missing ${missing}; "
      "to fix it: ${remedy}, then cmake ${CMAKE_BINARY_DIR}")
  else()
    set(LibTorch_CUDA ON)  # registers its kernels in static initialisers: the linker must not drop it
    list(APPEND libraries ${LIBTORCH_ROOT}/lib/libtorch_cuda.so ${LIBTORCH_ROOT}/lib/libc10_cuda.so)
    # Inline functions of torch's CUDA headers call the runtime; the wheel that torch itself loads comes first.
    find_library(cudart NAMES libcudart.so.13 libcudart.so.12 cudart HINTS
      ${packages}/nvidia/cu13/lib ${packages}/nvidia/cuda_runtime/lib /usr/local/cuda/lib64)
    if(cudart)
      set(LibTorch_CUDART ${cudart})
      list(APPEND libraries ${cudart})
    endif()
  endif()
endif()
if(COLOSSAL_CUDA STREQUAL "ON" AND NOT LibTorch_CUDA)
  message(FATAL_ERROR "COLOSSAL_CUDA is ON, but CUDA cannot be used: ${LibTorch_CUDA_PROBLEM}")
endif()

add_library(LibTorch::torch INTERFACE IMPORTED)
target_include_directories(LibTorch::torch SYSTEM INTERFACE
  ${LIBTORCH_ROOT}/include ${LIBTORCH_ROOT}/include/torch/csrc/api/include)
target_compile_definitions(LibTorch::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC AT_PER_OPERATOR_HEADERS)
# The C++ library first: libtorch.so of 2.11 with CUDA has parts of std::filesystem for everybody to see, which end in a
# null pointer.
target_link_libraries(LibTorch::torch INTERFACE -Wl,--no-as-needed stdc++ ${libraries} -Wl,--as-needed Threads::Threads)
target_link_options(LibTorch::torch INTERFACE -Wl,-rpath,${LIBTORCH_ROOT}/lib)
if(LibTorch_CUDART)
  cmake_path(GET LibTorch_CUDART PARENT_PATH cudart_folder)
  target_link_options(LibTorch::torch INTERFACE -Wl,-rpath,${cudart_folder})
endif()
message(STATUS "LibTorch ${LibTorch_VERSION} at ${LIBTORCH_ROOT} (CUDA: ${LibTorch_CUDA})")
if(LibTorch_CUDA_PROBLEM)
  message(STATUS "CUDA: ${LibTorch_CUDA_PROBLEM}")
endif()
