// One rank of the process tests of comm. It joins its run by launch(), runs the action that its first argument names,
// and reports by its exit status.
#include <ATen/ATen.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/launch/launch.h"
#include "colossal/comm/launch/local_ranks.h"
#include "support/ranks_conformance.h"

namespace {

using colossal::comm::Group;
using colossal::comm::World;

std::shared_ptr<Group> all(World& world, const std::string& name = "all") {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group(name, ranks);
}

/// Reduces forever; the test kills a rank in the meantime.
void reduce_for_ever(World& world) {
  const auto group = all(world);
  at::Tensor x = at::zeros({1000});
  group->all_reduce(x, colossal::comm::Reduce::Sum).wait();
  std::fprintf(stderr, "rank %d runs as %d\n", world.rank(), static_cast<int>(getpid()));
  while (true) {
    group->all_reduce(x, colossal::comm::Reduce::Sum).wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// The last rank does not join the second collective.
void skip_a_collective(World& world) {
  const auto group = all(world);
  at::Tensor x = at::zeros({1024});
  group->all_reduce(x, colossal::comm::Reduce::Sum).wait();
  if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::seconds(30));
  group->all_reduce(x, colossal::comm::Reduce::Sum).wait();
}

/// Rank 1 announces that it is busy, then its process is stopped.
void stop_while_busy(World& world) {
  const auto group = all(world);
  if (world.rank() == 1) {
    const auto busy = world.busy("saving a checkpoint");
    std::this_thread::sleep_for(std::chrono::seconds(3));  // until the announcement is published
    raise(SIGSTOP);
  }
  group->barrier().wait();
}

/// Rank 0, which serves the store, is stopped; the rank that gets an error ends it.
void stop_with_the_store(World& world) {
  const auto group = all(world);
  at::Tensor mine = at::full({1}, static_cast<int64_t>(getpid()), at::kLong),
             processes = at::zeros({world.size()}, at::kLong);
  group->all_gather(processes, mine).wait();
  try {
    if (world.rank() == 0) raise(SIGSTOP);
    group->barrier().wait();
  } catch (const std::exception&) {
    kill(static_cast<pid_t>(processes[0].item<int64_t>()), SIGKILL);
    throw;
  }
}

/// Rank 1 joins the making of a group 7 seconds after rank 0, or never.
void make_a_group_late(World& world, bool never) {
  all(world)->barrier().wait();
  if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(never ? 600 : 7));
  world.make_group("late", {0, 1})->barrier().wait();
}

volatile std::sig_atomic_t asked = 0;

void on_signal(int signal) {
  if (asked) _exit(128 + signal);
  asked = signal;
}

/// Starts a process that, like a worker of a data loader, ends by SIGTERM and SIGINT.
pid_t start_worker(int rank) {
  const pid_t worker = fork();
  if (worker == 0) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
    while (true) pause();
  }
  std::fprintf(stderr, "rank %d has worker %d\n", rank, static_cast<int>(worker));
  return worker;
}

/// Ends after a signal, and reports before whether its worker still runs. The worker outlives it.
[[noreturn]] void end_with_worker(World& world) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, on_signal);
  const pid_t worker = start_worker(world.rank());
  all(world)->barrier().wait();
  std::fprintf(stderr, "rank %d runs as %d\n", world.rank(), static_cast<int>(getpid()));
  while (!asked) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a signal for the worker would have come by now
  const bool runs = waitpid(worker, nullptr, WNOHANG) == 0;
  std::fprintf(stderr, "the worker %s\n", runs ? "still runs" : "has ended");
  std::exit(128 + asked);
}

/// Ends after a signal. Rank 0 first does some work, which it starts after rank 1 has ended; with `never` that work
/// has no end. A second signal ends rank 0 at once.
[[noreturn]] void end_when_asked(World& world, bool never) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, on_signal);
  at::Tensor mine = at::full({1}, static_cast<int64_t>(getpid()), at::kLong),
             processes = at::zeros({world.size()}, at::kLong);
  all(world)->all_gather(processes, mine).wait();
  std::fprintf(stderr, "rank %d runs as %d\n", world.rank(), static_cast<int>(getpid()));
  const auto moment = std::chrono::milliseconds(10);
  while (!asked) std::this_thread::sleep_for(moment);
  if (world.rank() == 0) {
    while (kill(static_cast<pid_t>(processes[1].item<int64_t>()), 0) == 0) std::this_thread::sleep_for(moment);
    std::fprintf(stderr, "rank 1 is gone\n");
    for (int i = 0; i < 30 || never; ++i) std::this_thread::sleep_for(moment);
    std::fprintf(stderr, "rank 0 has saved\n");
  }
  std::exit(128 + asked);
}

void run(const std::string& what, World& world) {
  if (what == "conform") {
    colossal::test::check_transport(*all(world));
  } else if (what == "sums") {
    const auto group = all(world, "tensor");
    for (int64_t numel : {1, 2, 1000, 150001}) colossal::test::check_sums_in_rank_order(*group, numel);
  } else if (what == "pairs") {  // groups of neighbours and the group of all; on two hosts they use different
                                 // transports
    const int first = world.rank() / 2 * 2;
    colossal::test::check_transport(*world.make_group("pair", {first, first + 1}));
    colossal::test::check_every_collective(*all(world), 1025);
  } else if (what == "for_ever") {
    reduce_for_ever(world);
  } else if (what == "skip") {
    skip_a_collective(world);
  } else if (what == "late_group" || what == "no_group") {
    make_a_group_late(world, what == "no_group");
  } else if (what == "stop_while_busy") {
    stop_while_busy(world);
  } else if (what == "stop_with_the_store") {
    stop_with_the_store(world);
  } else if (what == "ask" || what == "ask_twice") {
    end_when_asked(world, what == "ask_twice");
  } else if (what == "ask_with_worker") {
    end_with_worker(world);
  } else if (what == "exit") {
    all(world)->barrier().wait();
    if (world.rank() == 1) std::exit(7);
    all(world)->barrier().wait();
  } else {
    throw colossal::Error("probe", "unknown task " + what);
  }
  std::fprintf(stdout, "rank %d of %d ok on %s, local rank %d\n", world.rank(), world.size(), world.backend().c_str(),
               world.local_rank());
}

/// probe launch N ARGUMENTS...: the same program as N local ranks.
int launch_ranks(int argc, char** argv) {
  colossal::comm::LocalRanks ranks;
  ranks.ranks = std::atoi(argv[2]);
  ranks.command = {argv[0]};
  for (int i = 3; i < argc; ++i) ranks.command.push_back(argv[i]);
  ranks.report = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  return colossal::comm::run_local_ranks(ranks);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 3 && std::string(argv[1]) == "launch") return launch_ranks(argc, argv);
    colossal::comm::LaunchOptions options;
    if (argc > 2) options.backend = argv[2];
    if (argc > 3) options.watchdog = std::chrono::milliseconds(std::atoi(argv[3]));
    if (argc > 4) options.timeout = std::chrono::milliseconds(std::atoi(argv[4]));
    options.note = [](const std::string& text) { std::fprintf(stderr, "colossal: %s\n", text.c_str()); };
    const auto world = colossal::comm::launch(options);
    run(argc > 1 ? argv[1] : "conform", *world);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", colossal::plain_message(error).c_str());
    return 1;
  }
}
