// Provides the ranks of a command: those that a launcher started, or local ones that the command starts itself.
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

/// If no launcher started this process and `ranks` > 1, runs `ranks` copies of this program on this host with the
/// arguments `words` and returns their exit status. Otherwise returns work(), which then runs as one rank of the world.
/// Adds the rank to errors of work() that do not name one.
int with_ranks(int64_t ranks, const Arguments& words, const std::function<int()>& work);
/// Does the same with the arguments of `colossal command arguments...`: `command`, then `arguments`.
int with_ranks(int64_t ranks, const std::string& command, const Arguments& arguments, const std::function<int()>& work);

/// Runs `ranks` copies of this program on this host with the arguments `words`, also if it is one, and returns their
/// exit status.
int start_ranks(int64_t ranks, const Arguments& words);

/// Prints on stderr when ranks wait for another rank for long, and for which one.
void say_stalls(comm::World& world);

/// Calls comm::launch() with the settings of [run].
std::unique_ptr<comm::World> join_run(const run::RunConfig& config, const comm::Devices& devices);

/// Prints a message about the ranks on stderr.
void say(const std::string& what);

/// Warns on stderr if device "auto" is the CPU although the machine has GPUs. Call it on rank 0 only.
void warn_of_unused_gpus(const std::string& device, const comm::Devices& devices = comm::cuda_devices());

/// Adds --timeout: the seconds that the ranks of a command wait for each other.
void add_timeout(CLI::App& app, int64_t& seconds);
/// Calls comm::launch() for a command without a config: ranks wait `timeout` seconds for each other, and stderr reports
/// long waits.
std::unique_ptr<comm::World> join_ranks(int64_t timeout, const std::string& device);

// The three functions below decide what stop signals do: SIGINT, SIGTERM and SIGHUP (unless it is ignored, as under
// nohup). Before the first call they end the process. The last call counts.

/// Effect of a second SIGINT or SIGTERM: the process ends at once, or stop_is_urgent() is true.
enum class SecondSignal { Ends, IsReported };
/// Makes stop_requested() true once a stop signal has arrived. Also calls ignore_broken_pipes().
void watch_stop_signals(SecondSignal second = SecondSignal::Ends);
/// Makes a stop signal end the process at once with status 0, also one that HeldStopSignals delays.
void end_on_stop_signals();
/// Makes the process ignore stop signals, for a rank that rank 0 ends after it got the same signal.
void ignore_stop_signals();
/// Makes later writes to a pipe without a reader fail instead of ending the process (`colossal train ... | head`).
void ignore_broken_pipes();
/// Returns true after a signal that watch_stop_signals() watches; false if the signals are not watched.
bool stop_requested();
/// Returns true after a second SIGINT or SIGTERM, with SecondSignal::IsReported.
bool stop_is_urgent();
/// Resets stop_requested() and stop_status() after a SIGINT, because it was meant for an operation that has ended: the
/// user stopped a completion. SIGTERM and SIGHUP remain.
void forget_interrupt();
/// Returns 128 + the signal, the second one if there is one, as a shell reports it; 0 if no signal arrived.
int stop_status();

}  // namespace colossal::cli
