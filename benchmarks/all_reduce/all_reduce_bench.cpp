// All-reduce between two processes of one host: our shared-memory transport and c10d's Gloo, in turns within one run.
//
//   all_reduce_bench [RANKS]      prints one line per size: the median time of each, and the ratio
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/launch/launch.h"
#include "colossal/comm/launch/local_ranks.h"

namespace {

using colossal::comm::Group;
using colossal::comm::Reduce;
using Clock = std::chrono::steady_clock;

/// Returns the median seconds of one call over `rounds`; the slowest rank's value on all ranks.
double median_seconds(Group& group, at::Tensor& x, int calls, int rounds) {
  std::vector<double> seconds;
  for (int i = 0; i < rounds + 1; ++i) {
    group.barrier().wait();
    const auto start = Clock::now();
    for (int c = 0; c < calls; ++c) group.all_reduce(x, Reduce::Max).wait();  // Max: values stay as they are
    if (i > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / calls);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  at::Tensor median = at::full({1}, seconds[rounds / 2], at::kDouble);
  group.all_reduce(median, Reduce::Max).wait();
  return median.item<double>();
}

void measure() {
  colossal::comm::LaunchOptions options;
  options.backend = "gloo";
  const auto gloo_world = colossal::comm::launch(options);
  auto environment = colossal::comm::read_environment(colossal::comm::process_variables());
  environment.prefix = "second";
  options.backend = "shm";
  const auto shm_world = colossal::comm::launch(options, environment);
  std::vector<int> ranks(gloo_world->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto gloo = gloo_world->make_group("gloo", ranks), shm = shm_world->make_group("shm", ranks);
  if (shm->rank() == 0) std::printf("%10s %14s %14s %8s\n", "bytes", "shm", "gloo", "ratio");
  for (const int64_t bytes : {8ll, 4096ll, 65536ll, 1ll << 20, 16ll << 20, 64ll << 20}) {
    at::Tensor x = at::ones({bytes / 4});
    const int calls = static_cast<int>(std::clamp<int64_t>((8 << 20) / bytes, 1, 500));
    const double shm_seconds = median_seconds(*shm, x, calls, 11);
    const double gloo_seconds = median_seconds(*gloo, x, calls, 11);
    if (shm->rank() > 0) continue;
    std::printf("%10ld %11.1f us %11.1f us %8.2f\n", static_cast<long>(bytes), shm_seconds * 1e6, gloo_seconds * 1e6,
                gloo_seconds / shm_seconds);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (std::getenv("COLOSSAL_RANK")) {
      measure();
      return 0;
    }
    colossal::comm::LocalRanks run;
    run.ranks = argc > 1 ? std::atoi(argv[1]) : 2;
    run.command = {argv[0]};
    run.report = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
    return colossal::comm::run_local_ranks(run);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", colossal::plain_message(error).c_str());
    return 1;
  }
}
