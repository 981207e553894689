# Writes OUT, a header with the commit of SOURCE, if it says something else than before. Run by each build.
#   cmake -D SOURCE=FOLDER -D OUT=FILE -P Revision.cmake
set(revision "")
find_program(git git)
if(git AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${git} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT revision MATCHES "^[0-9a-f]+(-dirty)?$")
    set(revision "")
  endif()
endif()
set(content "#define COLOSSAL_REVISION \"${revision}\"\n")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT content STREQUAL before)
  file(WRITE ${OUT} "${content}")
endif()
