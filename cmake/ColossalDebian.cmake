# `cpack -G DEB` in the build folder makes two packages:
#   colossal          the programs, with LibTorch's libraries for CPUs in lib/colossal, because Debian 12 has LibTorch
#                     1.13;
#   libcolossal-dev   what find_package(Colossal) reads. LIBTORCH_ROOT of its user names a LibTorch of the same version.
# LibTorch must be a CPU build: the libraries of a CUDA build are gigabytes, and some may not be distributed further.
if(EXISTS ${LIBTORCH_ROOT}/lib/libtorch_cuda.so)
  return()
endif()
set(libraries ${LibTorch_CPU} ${LibTorch_C10})
if(EXISTS ${LIBTORCH_ROOT}/lib/libgomp.so.1)
  list(APPEND libraries ${LIBTORCH_ROOT}/lib/libgomp.so.1)
endif()
install(PROGRAMS ${libraries} DESTINATION lib/colossal COMPONENT libtorch EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "The authors of Colossal")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
string(REPLACE "." "~" suffix "${COLOSSAL_VERSION_SUFFIX}")  # 0.1.0~dev20261127 is older than 0.1.0
set(CPACK_DEBIAN_PACKAGE_VERSION ${PROJECT_VERSION}${suffix})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/DebianFiles.cmake)
set(CPACK_COMPONENTS_ALL program libtorch development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COLOSSAL_PACKAGE_NAME colossal)
set(CPACK_DEBIAN_COLOSSAL_DESCRIPTION "Trains and runs large transformers")
set(CPACK_DEBIAN_COLOSSAL_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${LIBTORCH_ROOT}/lib)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libcolossal-dev)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "Trains and runs large transformers: headers and archives of the C++ library")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(depends cmake nlohmann-json3-dev libspdlog-dev libtomlplusplus-dev libxxhash-dev libpcre2-dev libutf8proc-dev
  zlib1g-dev libzstd-dev libpng-dev libjpeg-dev)
if(LIBURING_INCLUDE AND LIBURING_LIBRARY)
  list(APPEND depends liburing-dev)
endif()
list(JOIN depends ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)
include(CPack)
cpack_add_component_group(colossal)
cpack_add_component(program GROUP colossal)
cpack_add_component(libtorch GROUP colossal)
cpack_add_component(development)
