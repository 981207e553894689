#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::comm {
class Devices;
}
namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal train CONFIG [--resume | --overwrite] [--section.key=value ...]`
/// `models`: of the architectures that it knows; null: those that the library has. `devices`: that [run] device chooses
/// among; none given: CUDA's. Ranks that this command starts itself are programs of their own, which have CUDA's.
int train(const Arguments& arguments, const models::Registry* models);
int train(const Arguments& arguments, const models::Registry* models, const comm::Devices& devices);

}  // namespace colossal::cli
