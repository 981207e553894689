// This file is separate from main.cpp, because `colossal` runs main.cpp without LibTorch.
#include "colossal/cli/main.h"
#include "colossal/run/program.h"

namespace colossal::cli {

int main(int argc, char** argv, const models::Registry& models) { return main(argc, argv, run::Program(models)); }

}  // namespace colossal::cli
