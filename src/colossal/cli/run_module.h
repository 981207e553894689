// The main() of a program that trains a module of its own.
//
//   void train(colossal::comm::World& world, const colossal::Config& config) {
//     auto module = std::make_shared<Net>();
//     const auto training = colossal::initialize(world, *module, config);
//     ...                                                       // the loop: train/module_training.h
//   }
//   int main(int argc, char** argv) { return colossal::run_module(argc, argv, train); }
#pragma once
#include <functional>

#include "colossal/comm/world.h"
#include "colossal/run/config.h"

namespace colossal::cli {

/// What a rank does. All ranks get the same config.
using ModuleWork = std::function<void(comm::World& world, const run::Config& config)>;

/// Runs `PROGRAM FILE.toml [--section.key=value ...]`: reads the config, calls `work` on every rank, and returns the
/// exit status for main(). Never throws.
///
/// Ranks: those that torchrun, mpirun, srun or `colossal run` started. Without a launcher and with parallel.data above
///        1 this process starts the program again for each rank, on this host, and waits for all of them.
/// [run]: `device`, `backend`, `timeout`, `stall_notice` and `bind_cores` are obeyed.
/// Status: 0; 1 and one message on stderr for what `work` throws; 2 for a command line without a config; that of the
///         first rank that failed. `--help` prints the usage and ends with 0. An Error that nothing catches, on another
///         thread for instance, ends the process with its message and 1 too.
int run_module(int argc, char** argv, const ModuleWork& work);

}  // namespace colossal::cli

namespace colossal {
using cli::run_module;
}
