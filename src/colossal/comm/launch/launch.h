// From a process that some launcher started to a World: rendezvous, hosts, transports, cores.
//
//   const auto world = comm::launch({.device = "cuda"});     // as torchrun, srun, mpirun or `colossal run` started it
//   printf("rank %d of %d\n", world->rank(), world->size());
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/comm/world.h"

namespace colossal::comm {

struct LaunchOptions {
  /// "auto": nccl when `device` is "cuda" and no two ranks of a host were given the same GPU, else for each group shm
  /// when its ranks are on one host and gloo when not. Or one of "shm", "gloo", "nccl" for all groups.
  std::string backend = "auto";
  std::chrono::milliseconds timeout{60000};   ///< for the ranks to find each other
  std::chrono::milliseconds watchdog{30000};  ///< for a collective, or a group to be made, before the run ends
  std::chrono::milliseconds notice{10000};    ///< for a collective, before World::on_stall tells of the late rank
  /// Splits the cores this process may use evenly among the ranks of the host, binds this rank to its share and gives
  /// LibTorch as many threads. Where each rank of the host has a GPU and the kernel says on which NUMA node that is, a
  /// rank's share is of the cores of that node. Ranks that their launcher has bound already (mpirun, srun) keep what
  /// they have.
  bool bind_cores = true;
  std::string device = "cpu";  ///< "cpu", or "cuda": then choose_device()'s is this thread's current one from now on
  /// Told, on any thread, what people should know though the run goes on: why GPUs do without nccl (rank 0), that
  /// somebody without the run's secret wrote into its store.
  std::function<void(const std::string&)> note = {};
  const Devices* devices = &cuda_devices();  ///< that "cuda" means
  std::string sysfs = "/sys";                ///< where the kernel says what is near what
};

/// Joins the other ranks of the run; collective among all of them. Without a launcher the world has one rank. From then
/// on an Error that nothing catches ends this process with its message and status 1 (base/uncaught_error.h).
///
/// Errors: throws Error("launch", ...): a broken environment, a port in use, ranks that do not come within `timeout`
///         (they are named), two processes with the same rank, ranks with different numbers of ranks, a transport
///         that these hosts cannot use. Error("run", ...): no GPU for "cuda".
std::unique_ptr<World> launch(const LaunchOptions& options);
std::unique_ptr<World> launch(const LaunchOptions& options, const Environment& environment);

}  // namespace colossal::comm
