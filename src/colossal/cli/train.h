#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::comm {
class Devices;
}
namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal train CONFIG [--resume | --overwrite] [--section.key=value ...]`
/// `program`: the models and objectives that it knows; null: those of the library. `devices`: that [run] device chooses
/// among; none given: CUDA's. Ranks that this command starts itself are programs of their own, which have CUDA's.
int train(const Arguments& arguments, const run::Program* program);
int train(const Arguments& arguments, const run::Program* program, const comm::Devices& devices);

}  // namespace colossal::cli
