# What `cmake --install` puts into a prefix: the program, an archive a layer, headers, and the package that find_package(Colossal) reads.
# Users link Colossal::colossal, which is all layers.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Colossal)

get_property(layers GLOBAL PROPERTY COLOSSAL_LAYERS)
add_library(colossal INTERFACE)
target_link_libraries(colossal INTERFACE ${layers})
target_compile_features(colossal INTERFACE cxx_std_20)
target_compile_definitions(colossal INTERFACE NDEBUG)  # for users who set no build type; the reason is beside CMAKE_CXX_FLAGS_RELEASE
target_link_options(colossal INTERFACE $<$<BOOL:${COLOSSAL_SANITIZE}>:-fsanitize=${COLOSSAL_SANITIZE}>)

set_target_properties(colossal_torch PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS colossal_app)
install(TARGETS colossal_torch DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/colossal)
install(TARGETS colossal ${layers} EXPORT ColossalTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/src/colossal DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT ColossalTargets NAMESPACE Colossal:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ColossalConfig.cmake.in ${PROJECT_BINARY_DIR}/ColossalConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ColossalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ColossalConfig.cmake ${PROJECT_BINARY_DIR}/ColossalConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake DESTINATION ${package_folder})
