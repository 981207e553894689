// The program with LibTorch, which `colossal` becomes for most commands, and which launchers start as ranks. Everything
// it can do is a function of the library: see src/colossal/cli.
#include "colossal/cli/main.h"

int main(int argc, char** argv) { return colossal::cli::main(argc, argv); }
