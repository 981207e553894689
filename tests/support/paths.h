// Where this checkout and what it built are. The paths are macros of one unit, paths.cpp, so that every other unit of
// the tests compiles to the same object in any folder, and a compiler cache finds it.
#pragma once
#include <string>

namespace colossal::test {

/// Returns the root of the source tree, absolute and without a slash at its end.
std::string source_dir();

/// Returns the path of the program `colossal`. `colossal-torch` is beside it.
std::string program_path();

/// Returns the path of one rank of the process tests of comm.
std::string comm_probe();

/// Returns the path of the library that makes disks fail (dist/faulty_disk.cpp).
std::string faulty_disk();

/// Returns the path of the program that an example builds, such as "own_streams".
std::string example_program(const std::string& name);

}  // namespace colossal::test
