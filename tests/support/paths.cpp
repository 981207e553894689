#include "support/paths.h"

namespace colossal::test {

std::string source_dir() { return COLOSSAL_SOURCE_DIR; }
std::string program_path() { return COLOSSAL_BINARY; }
std::string comm_probe() { return COLOSSAL_COMM_PROBE; }
std::string faulty_disk() { return COLOSSAL_FAULTY_DISK; }

std::string example_program(const std::string& name) {
  // The tutorial builds this one against an installation.
  if (name == "own_model") return COLOSSAL_BINARY_DIR "/docs/own-model/build/own_model/own_model";
  return COLOSSAL_BINARY_DIR "/tests/colossal_" + name;
}

}  // namespace colossal::test
