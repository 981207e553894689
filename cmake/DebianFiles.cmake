# CPack runs it on the files of the packages before it packs them. The archives of `cmake --install` have debug
# information, and its program looks for LibTorch where LibTorch was when the program was linked.
set(usr ${CPACK_TEMPORARY_DIRECTORY}/*/usr)
file(GLOB program ${usr}/bin/colossal)
file(GLOB program_with_torch ${usr}/libexec/colossal/colossal-torch)
file(GLOB archives ${usr}/lib/libcolossal_*.a)
file(RPATH_SET FILE ${program_with_torch} NEW_RPATH "$ORIGIN/../../lib/colossal")
execute_process(COMMAND strip ${program} ${program_with_torch} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND strip --strip-debug ${archives} COMMAND_ERROR_IS_FATAL ANY)
