# What `cmake --install` puts into a prefix: the program, its text, an archive a layer, the headers that
# src/colossal/PUBLIC lists, and the package that find_package(Colossal) reads. Users link Colossal::colossal, which is
# all layers. The components are `program` and `development`.
include(CMakePackageConfigHelpers)
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Colossal)

get_property(layers GLOBAL PROPERTY COLOSSAL_LAYERS)
add_library(colossal INTERFACE)
target_link_libraries(colossal INTERFACE ${layers})
target_compile_features(colossal INTERFACE cxx_std_20)
# For users who set no build type; the reason is beside CMAKE_CXX_FLAGS_RELEASE.
target_compile_definitions(colossal INTERFACE NDEBUG)
target_link_options(colossal INTERFACE $<$<BOOL:${COLOSSAL_SANITIZE}>:-fsanitize=${COLOSSAL_SANITIZE}>)

set_target_properties(colossal_torch PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS colossal_app COMPONENT program)
install(TARGETS colossal_torch DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/colossal COMPONENT program)
# The text of data.path = "builtin", for programs whose sources are elsewhere: src/colossal/cli/builtin_text.h.
set(text ${PROJECT_BINARY_DIR}/packed/builtin_text.gz)
install(CODE "file(MAKE_DIRECTORY [[${PROJECT_BINARY_DIR}/packed]])" COMPONENT program)
install(CODE "execute_process(COMMAND [[$<TARGET_FILE:colossal_pack_text>]] [[${PROJECT_SOURCE_DIR}]] [[${text}]]
  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
install(FILES ${text} DESTINATION ${CMAKE_INSTALL_DATADIR}/colossal COMPONENT program)
install(TARGETS colossal ${layers} EXPORT ColossalTargets COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/src/colossal.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
file(STRINGS ${PROJECT_SOURCE_DIR}/src/colossal/PUBLIC rows REGEX "^[a-z]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/colossal/PUBLIC)
foreach(row ${rows})
  string(REGEX MATCH "^([a-z_]+) *:(.*)$" _ "${row}")
  set(layer ${CMAKE_MATCH_1})
  separate_arguments(headers UNIX_COMMAND "${CMAKE_MATCH_2}")
  foreach(header ${headers})
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${PROJECT_SOURCE_DIR}/src/colossal/${layer}/${header}.h
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/colossal/${layer}/${folder} COMPONENT development)
  endforeach()
endforeach()
install(EXPORT ColossalTargets NAMESPACE Colossal:: DESTINATION ${package_folder} COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ColossalConfig.cmake.in
  ${PROJECT_BINARY_DIR}/ColossalConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ColossalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ColossalConfig.cmake ${PROJECT_BINARY_DIR}/ColossalConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindLibTorch.cmake DESTINATION ${package_folder} COMPONENT development)
