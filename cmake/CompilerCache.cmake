# Compiles through ccache where it is found, so that what this machine has compiled once, in whatever folder, is not
# compiled again.
#
# Input: COLOSSAL_CCACHE: OFF compiles without it. A launcher that the user sets (CMAKE_CXX_COMPILER_LAUNCHER) is left
# alone.
#
# Units of two clones are equal only if no path of the clone is in them: paths on the command line are taken relative to
# the root (CCACHE_BASEDIR), units that join files name them relatively (UNITY_BUILD_RELOCATABLE), and the compiler
# notes no folder (NOHASHDIR). Paths that a program must know are macros of single small units. A precompiled header
# needs the sloppiness that ccache's manual lists for it.
# Of CMake 4; an older one writes absolute paths, which ccache sees through in a second step.
set(CMAKE_UNITY_BUILD_RELOCATABLE ON)
option(COLOSSAL_CCACHE "Compile through ccache where it is found" ON)
if(NOT COLOSSAL_CCACHE OR CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(CCACHE_PROGRAM ccache)
if(NOT CCACHE_PROGRAM)
  return()
endif()
set(COLOSSAL_COMPILER_CACHE env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK=content
  CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime,locale ${CCACHE_PROGRAM})
set(CMAKE_CXX_COMPILER_LAUNCHER ${COLOSSAL_COMPILER_CACHE})
message(STATUS "ccache: ${CCACHE_PROGRAM}")
