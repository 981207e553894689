// The program with LibTorch. `colossal` becomes it for most commands, and launchers start it as ranks. All its
// functions are in the library: see src/colossal/cli.
#include "colossal/cli/main.h"
#include "colossal/memory/account.h"

int main(int argc, char** argv) {
  colossal::memory::track_host_memory();
  return colossal::cli::main(argc, argv);
}
