# One static library a layer, its dependencies read from src/colossal/LAYERS; sources are found by folder, so that a new
# model or command needs no edit here. Suffixes carry meaning:
#   x_avx2.cpp, x_avx512.cpp, x_amx.cpp
#                              compiled for that instruction set, picked at run time; x_cpu.cpp for any, and as those a
#                              unit of its own, where the names of kernel bodies meet no others
#   x_cuda.cu                  compiled where nvcc is found, linked only against a CUDA build of torch
#   nccl.cpp / no_nccl.cpp     the second replaces the first if its headers are missing (cmake/CudaHeaders.cmake); so do
#                              no_cuda_graph.cpp, no_cuda_pages.cpp, no_io_uring.cpp, no_webp.cpp, no_tar.cpp,
#                              no_libav.cpp, for libav.cpp and libav_*.cpp, and no_gemmi.cpp, for gemmi_*.cpp

include(${CMAKE_CURRENT_LIST_DIR}/EmbedTexts.cmake)

# The first target of a `set` owns its precompiled header, the others reuse it. The set `layers` has LibTorch's tensors;
# the set `tests` also has what nearly every test includes, which saves a fifth of the time to compile one. GCC
# instantiates the templates of such a header again in every unit: with custom_function.h, which few units need, each
# took two seconds more.
function(colossal_share_pch target)  # set (default: layers)
  set(set layers)
  if(ARGC GREATER 1)
    set(set ${ARGV1})
  endif()
  if(NOT COLOSSAL_PCH)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")  # -fPIE would not fit a header that libraries compiled with -fPIC
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  get_property(owner GLOBAL PROPERTY COLOSSAL_PCH_OWNER_${set})
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
    return()
  endif()
  set(headers <ATen/ATen.h>)
  if(set STREQUAL "tests")
    list(APPEND headers <gmock/gmock.h> <gtest/gtest.h> "${PROJECT_SOURCE_DIR}/src/colossal/base/json.h")
  endif()
  target_precompile_headers(${target} PRIVATE ${headers})
  set_property(GLOBAL PROPERTY COLOSSAL_PCH_OWNER_${set} ${target})
endfunction()

# Reading LibTorch takes two seconds of each unit, so joined files build several times faster from scratch; an edit
# builds faster with single units (the preset `develop`). The files of a target are joined in equal parts of at most
# `batch`. They see one another's private names, which must be distinct in a layer. A file with a UNITY_GROUP stays in
# that group, one with SKIP_UNITY_BUILD_INCLUSION stays alone.
function(colossal_join_units target batch)
  if(NOT COLOSSAL_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  set(joined)
  foreach(source ${sources})
    get_source_file_property(group ${source} UNITY_GROUP)
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(NOT group AND NOT alone)
      list(APPEND joined ${source})
    endif()
  endforeach()
  list(LENGTH joined count)
  math(EXPR units "(${count} + ${batch} - 1) / ${batch}")
  set(at 0)
  foreach(source ${joined})
    math(EXPR number "${at} * ${units} / ${count}")
    math(EXPR at "${at} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${target}_${number})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes joined files for headers, whose private types others might see.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
endfunction()

# Files beside those of the torch-free layers that `colossal`, the program without LibTorch, takes from the archives. A
# unit is taken whole, so those of a layer form a unit of their own.
set(COLOSSAL_WITHOUT_TORCH
  align/rollouts/appended_records align/rollouts/records align/rollouts/rollout_record
  cli/arguments cli/become cli/commands cli/help cli/main cli/plan cli/plan_graph cli/report cli/rollouts cli/schedule
  cli/schedule_lr cli/standard_output cli/text_lines cli/tokenize cli/train_tokenizer
  data/chats/chat_encoder data/chats/chat_line
  comm/compression comm/launch/environment comm/launch/host comm/launch/process_settings distributed/config
  memory/tiers/eviction_policy models/config
  nn/fp8_config
  optim/config optim/learning_rate optim/parameter_groups optim/unused_keys
  parallel/expert/config parallel/pipeline/plan parallel/sequence/config parallel/tensor/config
  run/built_in_tables run/config run/data_keys run/layout_keys run/low_rank_keys run/module_names
  run/objectives/alignment/keys run/objectives/alignment/policy_keys run/objectives/alignment/reference_keys
  run/objectives/alignment/rollout_keys run/objectives/alignment/scorer_keys run/objectives/alignment/value_keys
  run/objectives/data_keys run/objectives/diffusion/diffusion_keys run/objectives/folding/folding_keys
  run/objectives/reconstruction/reconstruction_keys run/own_tables run/stored_config run/unused_keys)

# Layers with loops of their own over numbers, bytes or texts. The others call LibTorch or these, and are compiled with
# -Og, which takes a third less time than -O2; benchmarks/results/2026-11-28-build.md has the runs that are as fast with
# it. `tensor` owns the precompiled header: GCC crashes in units with -O2 if that was made with -Og.
set(COLOSSAL_HOT_LAYERS formats protein text tensor ops comm memory data infer)

function(colossal_select_sources layer out)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/colossal/${layer}/*.cpp)
  foreach(unit ${COLOSSAL_CUDA_UNITS})
    cmake_path(GET unit FILENAME name)
    if(COLOSSAL_CUDA_INCLUDE)
      set(left_out no_${name})
    else()
      set(left_out ${name})
    endif()
    list(FILTER sources EXCLUDE REGEX "/${left_out}\\.cpp$")
  endforeach()
  foreach(unit LIBURING=io_uring WEBP=webp LIBARCHIVE=tar LIBZIP=zip_file)
    string(REPLACE "=" ";" names ${unit})
    list(GET names 0 library)
    list(GET names 1 name)
    if(${library}_INCLUDE AND ${library}_LIBRARY)
      set(name no_${name})
    endif()
    list(FILTER sources EXCLUDE REGEX "/${name}\\.cpp$")
  endforeach()
  if(COLOSSAL_LIBAV)
    list(FILTER sources EXCLUDE REGEX "/no_libav\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/libav[^/]*\\.cpp$")
  endif()
  if(GEMMI_INCLUDE AND PEGTL_INCLUDE)
    list(FILTER sources EXCLUDE REGEX "/no_gemmi\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/gemmi_[^/]*\\.cpp$")
  endif()
  list(TRANSFORM COLOSSAL_WITHOUT_TORCH REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/src/colossal/\\1.cpp"
    OUTPUT_VARIABLE single)
  set_source_files_properties(${single} PROPERTIES UNITY_GROUP without_torch)
  # A unit that `colossal` leaves out, because starting with libzip takes longer.
  foreach(unit no_zip_file npy torch_file zip_file zip_members)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/formats/${unit}.cpp PROPERTIES
      UNITY_GROUP zip_files)
  endforeach()
  set(avx512 "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq")
  set(avx512bf16 "${avx512};-mavx512vnni;-mavx512bf16;-mavx512vbmi")
  foreach(source ${sources})
    if(source MATCHES "_cpu\\.cpp$")
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_avx2\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c" SKIP_PRECOMPILE_HEADERS ON
        SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_avxvnni\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c;-mavxvnni"
        SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${avx512};-mfma;-mf16c"
        SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_avx512vnni\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${avx512};-mavx512vnni;-mfma;-mf16c"
        SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_avx512bf16\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${avx512bf16};-mfma;-mf16c"
        SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source MATCHES "_amx\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "${avx512bf16};-mamx-tile;-mamx-bf16;-mamx-int8;-mfma;-mf16c"
        SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# Kernels for GPUs. Compiled wherever nvcc is found, so that a mistake shows on machines without a GPU too; linked where
# LibTorch has CUDA and brings the runtime that nvcc compiles for. Not CMake's own CUDA language, which must link a
# program to begin with: headers and the compiler are enough here.
function(colossal_add_cuda_kernels target)
  find_program(COLOSSAL_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(NOT COLOSSAL_NVCC)
    set(problem "not built, because nvcc was not found; install the CUDA toolkit, then cmake ${CMAKE_BINARY_DIR}")
    if(LibTorch_CUDA)
      message(STATUS "Kernels for GPUs: ${problem}")
    endif()
    set(COLOSSAL_CUDA_KERNELS_PROBLEM "${problem}" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${COLOSSAL_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+)" _ "${version}")
  set(major "${CMAKE_MATCH_1}")
  if(NOT major OR major LESS 12)
    set(problem "not built, because nvcc must be 12 or newer: got ${major} at ${COLOSSAL_NVCC}")
    message(STATUS "Kernels for GPUs: ${problem}")
    set(COLOSSAL_CUDA_KERNELS_PROBLEM "${problem}" PARENT_SCOPE)
    return()
  endif()
  # Where they are not linked they are only checked, for which code for one virtual architecture is enough: a fifth of
  # the time.
  set(is_linked FALSE)
  set(architectures -gencode=arch=compute_80,code=compute_80)
  if(LibTorch_CUDART MATCHES "cudart.so.${major}" OR (LibTorch_CUDART AND NOT LibTorch_CUDART MATCHES "so.[0-9]+$"))
    set(is_linked TRUE)
    set(architectures -gencode=arch=compute_75,code=compute_75 -gencode=arch=compute_80,code=sm_80
      -gencode=arch=compute_90,code=[sm_90,compute_90])
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/colossal/*_cuda.cu)
  foreach(source ${sources})
    cmake_path(GET source STEM name)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM
      COMMENT "Compiling ${name}.cu with nvcc"
      COMMAND ${COLOSSAL_COMPILER_CACHE} ${COLOSSAL_NVCC} -c ${source} -o ${object} -MD -MF ${object}.d -std=c++20 -O3
        -DNDEBUG --extended-lambda -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler
        -Xcompiler=-fPIC,-fvisibility=hidden,-Wall -I ${PROJECT_SOURCE_DIR}/src ${architectures})
    list(APPEND objects ${object})
  endforeach()
  add_custom_target(colossal_cuda_kernels ALL DEPENDS ${objects})
  if(is_linked)
    set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
    target_sources(${target} PRIVATE ${objects})
    target_compile_definitions(${target} PRIVATE COLOSSAL_CUDA_KERNELS)
  elseif(LibTorch_CUDA)
    string(CONCAT problem "not linked, because nvcc ${major} compiles for another runtime than LibTorch, "
      "${LibTorch_CUDART}; install nvcc of that version")
    message(WARNING "Kernels for GPUs: ${problem}")
    set(COLOSSAL_CUDA_KERNELS_PROBLEM "${problem}" PARENT_SCOPE)
  else()
    set(COLOSSAL_CUDA_KERNELS_PROBLEM "compiled but not linked, because libtorch_cuda.so is not linked" PARENT_SCOPE)
  endif()
endfunction()

function(colossal_add_layers)
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/colossal/LAYERS rows REGEX "^[a-z]")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/colossal/LAYERS)
  foreach(row ${rows})
    string(REGEX MATCH "^([a-z_]+)(\\*?) *:(.*)$" _ "${row}")
    set(layer ${CMAKE_MATCH_1})
    set(torch_free ${CMAKE_MATCH_2})
    separate_arguments(depends UNIX_COMMAND "${CMAKE_MATCH_3}")
    list(TRANSFORM depends PREPEND colossal_)
    colossal_select_sources(${layer} sources)
    add_library(colossal_${layer} STATIC ${sources})
    colossal_join_units(colossal_${layer} 34)
    set_target_properties(colossal_${layer} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${layer})
    target_include_directories(colossal_${layer} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set_property(GLOBAL APPEND PROPERTY COLOSSAL_LAYERS colossal_${layer})
    if(NOT layer IN_LIST COLOSSAL_HOT_LAYERS)
      # With -Og GCC takes parts of std::regex for uninitialized.
      target_compile_options(colossal_${layer} PRIVATE
        $<$<CONFIG:Release>:-Og> $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
    endif()
    target_compile_options(colossal_${layer} PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
    target_link_libraries(colossal_${layer} PUBLIC ${depends})
    if(NOT torch_free)
      target_link_libraries(colossal_${layer} PUBLIC LibTorch::torch)
      colossal_share_pch(colossal_${layer})
    endif()
  endforeach()
  colossal_add_cuda_kernels(colossal_ops)
  # What the checks of CUDA found, which `colossal info` prints.
  configure_file(${PROJECT_SOURCE_DIR}/src/colossal/base/cuda_build.cpp.in
    ${CMAKE_CURRENT_BINARY_DIR}/cuda_build.cpp @ONLY)
  target_sources(colossal_base PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/cuda_build.cpp)
  # The few layers with third-party needs of their own.
  target_compile_definitions(colossal_base PRIVATE COLOSSAL_VERSION="${PROJECT_VERSION}${COLOSSAL_VERSION_SUFFIX}")
  # The commit, in a header of its own that each build looks after: a unit of its own, so that a commit compiles one
  # file.
  set(revision ${CMAKE_CURRENT_BINARY_DIR}/revision)
  add_custom_target(colossal_revision BYPRODUCTS ${revision}/colossal_revision.h VERBATIM COMMAND ${CMAKE_COMMAND}
    -D SOURCE=${PROJECT_SOURCE_DIR} -D OUT=${revision}/colossal_revision.h
    -P ${PROJECT_SOURCE_DIR}/cmake/Revision.cmake)
  add_dependencies(colossal_base colossal_revision)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/base/version.cpp PROPERTIES
    INCLUDE_DIRECTORIES ${revision} SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(colossal_base PUBLIC nlohmann_json::nlohmann_json Threads::Threads
    PRIVATE spdlog::spdlog tomlplusplus::tomlplusplus ${XXHASH_LIBRARY})
  # Boost's headers take seconds, and their names meet no others: each file that includes them
  # (tests/base/layering_test.cpp lists them) is a unit of its own.
  target_include_directories(colossal_http SYSTEM PRIVATE ${BOOST_BEAST_INCLUDE})
  foreach(unit sockets request_input client)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/http/${unit}.cpp PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
  colossal_embed_texts(report/report_page.h page_style=report.css plots_script=plots.js charts_script=charts.js)
  colossal_embed_texts(evaluate/built_in_texts.h arc_challenge=tasks/arc_challenge.toml arc_easy=tasks/arc_easy.toml
    ceval=tasks/ceval.toml cmmlu=tasks/cmmlu.toml gsm8k=tasks/gsm8k.toml hellaswag=tasks/hellaswag.toml
    mmlu=tasks/mmlu.toml)
  colossal_embed_texts(serve/page.h page_html=page.html POLICY page_policy=page.html)
  target_link_libraries(colossal_protein PRIVATE ZLIB::ZLIB)
  if(GEMMI_INCLUDE AND PEGTL_INCLUDE)
    target_include_directories(colossal_protein SYSTEM PRIVATE ${GEMMI_INCLUDE} ${PEGTL_INCLUDE})
    if(GEMMI_LIBRARY)
      target_link_libraries(colossal_protein PRIVATE ${GEMMI_LIBRARY})
    endif()
    # Its headers have many names; each file that includes them is a unit of its own.
    foreach(unit mmcif pdb)
      set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/protein/gemmi_${unit}.cpp PROPERTIES
        SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
  endif()
  target_link_libraries(colossal_text PRIVATE ${PCRE2_LIBRARY} ${UTF8PROC_LIBRARY})
  # valijson's headers take seconds, too.
  target_include_directories(colossal_text SYSTEM PRIVATE ${VALIJSON_INCLUDE})
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/text/verifiers/json_schema_check.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON)
  # Loops over pixels, which -O2 does not make into vectors.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/data/pictures/resample.cpp PROPERTIES COMPILE_OPTIONS
    $<$<CONFIG:Release>:-O3> SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  target_link_libraries(colossal_data PRIVATE ZLIB::ZLIB ${ZSTD_LIBRARY} PNG::PNG JPEG::JPEG GIF::GIF ${CMAKE_DL_LIBS})
  if(COLOSSAL_LIBAV)
    target_include_directories(colossal_data SYSTEM PRIVATE ${LIBAV_FORMAT_INCLUDE} ${LIBAV_CODEC_INCLUDE}
      ${LIBAV_SCALE_INCLUDE})
  endif()
  foreach(library WEBP LIBARCHIVE)
    if(${library}_INCLUDE AND ${library}_LIBRARY)
      target_include_directories(colossal_data SYSTEM PRIVATE ${${library}_INCLUDE})
      target_link_libraries(colossal_data PRIVATE ${${library}_LIBRARY})
    endif()
  endforeach()
  if(LIBZIP_INCLUDE AND LIBZIP_LIBRARY)
    target_include_directories(colossal_formats SYSTEM PRIVATE ${LIBZIP_INCLUDE})
    target_link_libraries(colossal_formats PRIVATE ${LIBZIP_LIBRARY})
  endif()
  if(LIBURING_INCLUDE AND LIBURING_LIBRARY)
    target_include_directories(colossal_memory SYSTEM PRIVATE ${LIBURING_INCLUDE})
    target_link_libraries(colossal_memory PRIVATE ${LIBURING_LIBRARY})
  endif()
  target_link_libraries(colossal_cli PRIVATE $<BUILD_INTERFACE:CLI11::CLI11>)
  set(paths "COLOSSAL_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\""
    "COLOSSAL_PACKED_TEXT=\"${PROJECT_BINARY_DIR}/packed/builtin_text.gz\""
    "COLOSSAL_INSTALL_PREFIX=\"${CMAKE_INSTALL_PREFIX}\""
    "COLOSSAL_TEXT_FILE=\"${CMAKE_INSTALL_DATADIR}/colossal/builtin_text.gz\"")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/colossal/cli/builtin_text.cpp PROPERTIES
    SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON COMPILE_DEFINITIONS "${paths}")
  target_include_directories(colossal_comm SYSTEM PRIVATE ${PROJECT_SOURCE_DIR}/third_party/gloo_shim)
  if(COLOSSAL_CUDA_INCLUDE)
    target_include_directories(colossal_comm SYSTEM PRIVATE ${COLOSSAL_CUDA_INCLUDE})
    target_compile_definitions(colossal_comm PRIVATE USE_C10D_NCCL)
    target_include_directories(colossal_tensor SYSTEM PRIVATE ${COLOSSAL_CUDA_INCLUDE})
    target_include_directories(colossal_memory SYSTEM PRIVATE ${COLOSSAL_CUDA_INCLUDE})
  endif()
endfunction()

function(colossal_add_tests folder)  # globbed: a forgotten test file would be silent
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH_FREE" "LABEL;TIMEOUT;REQUIRES" "LINKS")
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  set(target colossal_${folder}_tests)
  add_executable(${target} ${sources})
  colossal_join_units(${target} 20)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${target} PRIVATE ${arg_LINKS} colossal_test_paths GTest::gtest_main GTest::gmock)
  if(NOT arg_TORCH_FREE)
    colossal_share_pch(${target} tests)
  endif()
  set(properties LABELS ${arg_LABEL})
  if(folder STREQUAL "ops")
    # These tests have threads, which wait for one another many times longer beside another test.
    list(APPEND properties PROCESSORS 2)
  else()  # ranks are the parallelism of these tests: a pool of threads for each would only crowd the cores
    list(APPEND properties ENVIRONMENT OMP_NUM_THREADS=1)
  endif()
  if(arg_REQUIRES)  # the fixture that another test sets up
    list(APPEND properties FIXTURES_REQUIRED ${arg_REQUIRES})
  endif()
  if(NOT arg_LABEL MATCHES "^(unit|gpu|trap)$")
    if(NOT arg_TIMEOUT)
      set(arg_TIMEOUT 300)
    endif()
    gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${arg_TIMEOUT} ${properties})
    return()
  endif()
  set(seconds 900)
  if(COLOSSAL_SANITIZE)  # tens of thousands of mutated requests to a server took 17 minutes on busy cores
    set(seconds 2700)
  endif()
  # One test of ctest a suite of gtest: see the script.
  set(suites ${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/DiscoverSuites.cmake)
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS ${suites} VERBATIM COMMAND ${CMAKE_COMMAND}
    -D PROGRAM=$<TARGET_FILE:${target}> -D FOLDER=${folder} -D OUT=${suites}
    -D "PROPERTIES=TIMEOUT;${seconds};${properties}" -P ${PROJECT_SOURCE_DIR}/cmake/DiscoverSuites.cmake)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake
    "if(EXISTS [[${suites}]])\n  include([[${suites}]])\n"
    "else()\n  add_test(${target}_NOT_BUILT ${target}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)
endfunction()
