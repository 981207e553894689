// Makes a World in a process that some launcher started: rendezvous, hosts, transports, cores.
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
  /// transport of the groups. "auto" = nccl if `device` is "cuda", all builds have NCCL and no two ranks of a host
  /// share a GPU; otherwise, for each group, shm if its ranks are on one host, else gloo. Or "shm", "gloo" or "nccl"
  /// for all groups. With nccl, CPU tensors use shm or gloo
  std::string backend = "auto";
  std::chrono::milliseconds timeout{60000};   ///< limit for the ranks to find each other
  std::chrono::milliseconds watchdog{30000};  ///< limit for a collective, or for making a group; then the run ends
  std::chrono::milliseconds notice{10000};    ///< time in a collective until World::on_stall reports the late rank
  /// splits the cores that this process may use evenly among the ranks of the host, binds this rank to its share and
  /// gives LibTorch as many threads. If each rank of the host has a GPU and the kernel reports the GPU's NUMA node,
  /// the rank's share consists of cores of that node. Ranks that their launcher has already bound (mpirun, srun) keep
  /// their cores
  bool bind_cores = true;
  std::string device = "cpu";  ///< "cpu", or "cuda": launch() then calls set_device_connections(), and makes
                               ///< choose_device()'s result the current device of this thread
  /// called, on any thread, with messages for the user that do not end the run: why GPUs work without nccl (on rank
  /// 0), or that a process without the run's secret wrote into its store. Empty = no messages
  std::function<void(const std::string&)> note = {};
  const Devices* devices = &cuda_devices();  ///< devices that "cuda" refers to; never null
  std::string sysfs = "/sys";                ///< folder in which the kernel reports which cores and devices are near
                                             ///< each other
};

/// Joins the other ranks of the run; collective among all of them. Without a launcher the world has one rank. After
/// the call, an uncaught Error ends this process with its message and status 1 (base/foreign_error.h).
///
/// Errors: throws Error("launch", ...) for a broken environment, a port in use, ranks that do not join within `timeout`
///         (the message names them), two processes with the same rank, ranks started for different numbers of ranks, or
///         a transport that these hosts cannot use. Throws Error("run", ...) if "cuda" finds no GPU.
std::unique_ptr<World> launch(const LaunchOptions& options);
std::unique_ptr<World> launch(const LaunchOptions& options, const Environment& environment);

}  // namespace colossal::comm
