// The main() of a program that trains its own module.
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

/// Function that runs on every rank. All ranks get the same config.
using ModuleWork = std::function<void(comm::World& world, const run::Config& config)>;

/// Runs `PROGRAM FILE.toml [--section.key=value ...]`: reads the config, calls `work` on every rank, and returns the
/// exit status for main(). Never throws.
///
/// The ranks are started by torchrun, mpirun, srun or `colossal run`. Without a launcher, if [parallel] asks for more
/// than one, this process starts the program again for each rank on this host and waits for all of them. Their number
/// is the product of the axes; with parallel.auto it is parallel.ranks, or 0 = one for each GPU. Every rank obeys
/// `device`, `backend`, `timeout`, `stall_notice` and `bind_cores` of [run]. Calls memory::track_host_memory().
/// Exit status: 0; 1 with one message on stderr if `work` throws; 2 for a command line without a config; the status of
/// the first rank that failed. `--help` prints the usage and returns 0. An Error that is not caught, e.g. on another
/// thread, ends the process with its message and status 1.
int run_module(int argc, char** argv, const ModuleWork& work);

}  // namespace colossal::cli

namespace colossal {
using cli::run_module;
}
