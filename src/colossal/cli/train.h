#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::comm {
class Devices;
}
namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal train CONFIG [--resume | --overwrite] [--section.key=value ...]`: trains a model. `program` has the models
/// and objectives that the config may name; null = the built-in ones. `devices` are the devices from which [run] device
/// chooses; without it, CUDA's. Ranks that this command starts itself are separate programs and always use CUDA's.
int train(const Arguments& arguments, const run::Program* program);
int train(const Arguments& arguments, const run::Program* program, const comm::Devices& devices);

}  // namespace colossal::cli
