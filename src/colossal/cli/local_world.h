// How a command gets its ranks: those a launcher made, or local ones that it starts itself.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "colossal/cli/arguments.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/world.h"
#include "colossal/run/config.h"

namespace colossal::cli {

/// When no launcher started this process and `ranks` > 1: runs `ranks` copies of this program with the arguments
/// `words` on this host and returns their exit status. Otherwise returns work(), which is then one rank of the world.
/// Errors of work() that do not carry a rank yet get one.
int with_ranks(int64_t ranks, const Arguments& words, const std::function<int()>& work);
/// Does as above with the words of `colossal command arguments...`: `command`, then `arguments`.
int with_ranks(int64_t ranks, const std::string& command, const Arguments& arguments, const std::function<int()>& work);

/// Prints on stderr that ranks wait for another one, and for which.
void say_stalls(comm::World& world);

/// comm::launch() as [run] says.
std::unique_ptr<comm::World> join_run(const run::RunConfig& config, const comm::Devices& devices);

/// Tells the user what happens to the ranks, on stderr.
void say(const std::string& what);

/// Warns on stderr if device "auto" is the CPU although the machine has GPUs. Rank 0 alone calls it.
void warn_of_unused_gpus(const std::string& device, const comm::Devices& devices = comm::cuda_devices());

/// --timeout: how long the ranks of a command wait for each other.
void add_timeout(CLI::App& app, int64_t& seconds);
/// comm::launch() for a command without a config: ranks wait `timeout` seconds for each other, and stderr says when
/// they do for long.
std::unique_ptr<comm::World> join_ranks(int64_t timeout, const std::string& device);

/// True once SIGINT, SIGTERM or SIGHUP (unless it is ignored, as under nohup) has arrived since watch_stop_signals(). A
/// second SIGINT or SIGTERM ends the process at once. It also calls ignore_broken_pipes().
void watch_stop_signals();
/// From now on a write to a pipe that nobody reads fails instead of ending the process (`colossal train ... | head`).
void ignore_broken_pipes();
bool stop_requested();
/// SIGINT was meant for what has ended since, and is as if it had not arrived: a person stopped an answer.
void forget_interrupt();
/// 128 + the signal, as a shell reports it; 0 before one.
int stop_status();

}  // namespace colossal::cli
