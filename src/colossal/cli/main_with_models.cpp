// This file is separate from main.cpp, because `colossal` runs main.cpp without LibTorch.
#include "colossal/cli/commands.h"
#include "colossal/cli/main.h"
#include "colossal/memory/account.h"
#include "colossal/run/program.h"

namespace colossal::cli {

int main(int argc, char** argv, const run::Program& program) {
  memory::track_host_memory();
  return run_program(argc, argv, &program);
}

int main(int argc, char** argv, const models::Registry& models) { return main(argc, argv, run::Program(models)); }

}  // namespace colossal::cli
