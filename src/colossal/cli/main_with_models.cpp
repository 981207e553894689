// Apart from main.cpp, which `colossal` runs without LibTorch.
#include "colossal/cli/main.h"
#include "colossal/run/program.h"

namespace colossal::cli {

int main(int argc, char** argv, const models::Registry& models) { return main(argc, argv, run::Program(models)); }

}  // namespace colossal::cli
