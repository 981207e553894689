#include "colossal/cli/local_world.h"

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "colossal/base/foreign_error.h"
#include "colossal/cli/become.h"
#include "colossal/cli/held_stop_signals.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/comm/launch/launch.h"
#include "colossal/comm/launch/local_ranks.h"

namespace colossal::cli {
namespace {

// Signals belong to the process, so this state is global. Two threads may handle two signals at once.
std::atomic<int> stop_signal = 0, second_signal = 0;
std::atomic<bool> reports_second = false;
std::atomic<bool> first_is_passed_on = false;  // whether a wrapper sent stop_signal, and the original is still to come
std::atomic<std::time_t> first_second = 0;     // time of stop_signal in whole seconds
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::time_t>::is_always_lock_free);

std::time_t monotonic_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

/// Returns true if a wrapper of this program, such as `uv run` or `timeout`, passes on a signal. The wrapper is in the
/// process group of this program; the launcher and the user's shell are in others.
bool is_passed_on(const siginfo_t& info) {
  return info.si_code == SI_USER && info.si_pid > 0 && info.si_pid != getpid() && getpgid(info.si_pid) == getpgrp();
}

/// A wrapper passes on a signal that this program has got already. The two may reach two threads at once, in any order.
void on_signal(int signal, siginfo_t* info, void*) {
  const bool passed_on = is_passed_on(*info);
  if (!stop_signal) {
    first_second = monotonic_seconds();
    first_is_passed_on = passed_on;
    stop_signal = signal;
    return;
  }
  if (signal == SIGHUP) return;  // it may arrive more than once for a lost terminal
  const bool is_soon = monotonic_seconds() <= first_second + 1;
  if (is_soon && (passed_on || first_is_passed_on.exchange(false))) return;
  if (!reports_second) std::_Exit(128 + signal);
  second_signal = signal;
}

void end_at_once(int, siginfo_t*, void*) { std::_Exit(0); }

void handle_stop_signals(struct sigaction action) {
  action.sa_flags |= SA_RESTART;  // a write in progress continues
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    sigaction(signal, nullptr, &before);
    const bool is_unwanted = signal == SIGHUP && before.sa_handler == SIG_IGN;  // nohup
    if (!is_unwanted) sigaction(signal, &action, nullptr);
  }
}

struct sigaction calls(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  return action;
}

}  // namespace

void ignore_broken_pipes() { std::signal(SIGPIPE, SIG_IGN); }

void watch_stop_signals(SecondSignal second) {
  reports_second = second == SecondSignal::IsReported;
  handle_stop_signals(calls(on_signal));
  ignore_broken_pipes();
}

void end_on_stop_signals() {
  handle_stop_signals(calls(end_at_once));
  const sigset_t held = HeldStopSignals::set();
  pthread_sigmask(SIG_UNBLOCK, &held, nullptr);
}

void ignore_stop_signals() {
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  handle_stop_signals(ignore);
}

bool stop_requested() { return stop_signal != 0; }

bool stop_is_urgent() { return second_signal != 0; }

void forget_interrupt() {
  if (stop_signal == SIGINT) stop_signal = 0;
}

int stop_status() {
  if (const int second = second_signal) return 128 + second;
  const int first = stop_signal;
  return first ? 128 + first : 0;
}

void say(const std::string& what) { std::fprintf(stderr, "colossal: %s\n", what.c_str()); }

int with_ranks(int64_t ranks, const std::string& command, const Arguments& arguments,
               const std::function<int()>& work) {
  Arguments words{command};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return with_ranks(ranks, words, work);
}

int start_ranks(int64_t ranks, const Arguments& words) {
  Arguments command{this_program()};
  command.insert(command.end(), words.begin(), words.end());
  return comm::run_local_ranks({.ranks = static_cast<int>(ranks), .command = command, .report = say});
}

int with_ranks(int64_t ranks, const Arguments& words, const std::function<int()>& work) {
  const comm::Environment environment = comm::read_environment(comm::process_variables());
  if (environment.launcher == comm::Launcher::None && ranks > 1) return start_ranks(ranks, words);
  try {
    return work();
  } catch (const std::exception& any) {
    const Error error = as_error(any);
    if (error.is_on_all_ranks()) {
      if (environment.rank == 0) throw;
      return 1;  // rank 0 prints the error for all ranks
    }
    throw Error(error.component(), with_rank(error.message(), environment.rank, environment.size));
  }
}

void warn_of_unused_gpus(const std::string& device, const comm::Devices& devices) {
  const std::string why = comm::why_gpus_are_unused(device, devices);
  if (!why.empty()) say("warning: " + why);
}

void say_stalls(comm::World& world) {
  world.on_stall([](const comm::Stall& stall) {
    if (stall.seen_here) say("waiting: " + stall.text);
  });
}

std::unique_ptr<comm::World> join_run(const run::RunConfig& config, const comm::Devices& devices) {
  const std::chrono::seconds timeout(config.timeout);
  const bool on_cpu = comm::choose_device(config.device, 0, devices).is_cpu();
  auto world = comm::launch({.backend = config.backend,
                             .timeout = std::min(timeout, std::chrono::seconds(60)),
                             .watchdog = timeout,
                             .notice = std::chrono::seconds(config.stall_notice),
                             .bind_cores = config.bind_cores,
                             .device = on_cpu ? "cpu" : "cuda",
                             .note = say,
                             .devices = &devices});
  if (world->rank() == 0) warn_of_unused_gpus(config.device, devices);
  return world;
}

void add_timeout(CLI::App& app, int64_t& seconds) {
  app.add_option("--timeout", seconds,
                 "seconds that ranks wait for one another, at the start and later, before the run ends")
      ->capture_default_str()
      ->check(CLI::Range(1, 86400));
}

std::unique_ptr<comm::World> join_ranks(int64_t timeout, const std::string& device) {
  const std::chrono::seconds limit(timeout);
  auto world = comm::launch({.timeout = limit, .watchdog = limit, .device = device, .note = say});
  say_stalls(*world);
  return world;
}

}  // namespace colossal::cli
