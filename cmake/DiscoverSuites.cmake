# Run as a script after a test program was linked: writes a file for ctest with one test a gtest suite.
#
#   cmake -D PROGRAM=... -D FOLDER=ops -D OUT=... -D "PROPERTIES=LABELS;unit;TIMEOUT;600" -P DiscoverSuites.cmake
#
# A process that loads LibTorch needs a quarter of a second before its first test, more than most tests take: a process
# a test made up half of the time of all tests.
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed TIMEOUT 60 COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "  # [^\n]*" "" listed "${listed}")  # parameters, whose letters may mean something to CMake
string(REPLACE "\n" ";" listed "${listed}")
set(script "")
set(suite "")
macro(write_suite)
  if(suite)
    string(APPEND script
      "add_test([=[${FOLDER}.${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=])\n"
      "set_tests_properties([=[${FOLDER}.${suite}]=] PROPERTIES COST ${cases} ${PROPERTIES_OF_ALL})\n")
  endif()
endmacro()
# A suite counts as skipped when none of its tests passed or failed: failures would be listed behind those skipped.
string(CONCAT PROPERTIES_OF_ALL "SKIP_REGULAR_EXPRESSION [=[PASSED  \\] 0 tests\\.\n"
  "\\[  SKIPPED \\] [0-9]+ tests?, listed below:\n(\\[  SKIPPED \\] [^\n]*\n)+$]=]")
foreach(property ${PROPERTIES})
  string(APPEND PROPERTIES_OF_ALL " [=[${property}]=]")
endforeach()
foreach(line ${listed})
  if(line MATCHES "^([^ ]+)\\.( |$)")
    write_suite()
    set(suite "${CMAKE_MATCH_1}")
    set(cases 0)
  elseif(line MATCHES "^  ")
    math(EXPR cases "${cases} + 1")
  endif()
endforeach()
write_suite()
file(WRITE ${OUT} "${script}")
