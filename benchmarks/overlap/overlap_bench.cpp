// Does SUMMA's double buffer hide transfers? Panels travel over a group whose every transfer takes a given time, and
// are "multiplied" by work of a given time; both are sleeps, so that a busy machine with few cores can show it. Peer:
// the same panels fetched one after the other.
//
//   colossal_overlap_bench [ranks = 12]
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/parallel/tensor/panels.h"

namespace colossal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// Broadcasts that arrive one after the other, each `delay` after the link is free.
class SlowGroup : public comm::GroupDecorator {
 public:
  SlowGroup(std::shared_ptr<comm::Group> inner, Milliseconds delay)
      : GroupDecorator(std::move(inner)), delay_(std::chrono::duration_cast<Clock::duration>(delay)) {}
  comm::Work issue(const comm::Call& call) override {
    comm::Work work = inner_->issue(call);
    if (call.collective != comm::Collective::Broadcast) return work;
    work.wait();
    free_ = std::max(free_, Clock::now()) + delay_;
    return comm::Work(std::make_shared<Arrival>(free_));
  }

 private:
  struct Arrival : comm::Work::State {
    explicit Arrival(Clock::time_point when) : when(when) {}
    void wait() override { std::this_thread::sleep_until(when); }
    bool done() override { return Clock::now() >= when; }
    Clock::time_point when;
  };
  Clock::duration delay_;
  Clock::time_point free_{};
};

/// Milliseconds of the slowest rank, the best of three rounds.
template <class Round>
double measure(int ranks, const Round& round) {
  double best = 1e30;
  for (int i = 0; i < 3; ++i) {
    double slowest = 0;
    std::mutex mutex;
    comm::run_ranks(ranks, [&](comm::World& world) {
      std::vector<int> all(ranks);
      std::iota(all.begin(), all.end(), 0);
      const std::shared_ptr<comm::Group> group = world.make_group("column", all);
      group->barrier().wait();
      const auto begin = Clock::now();
      round(group);
      const double taken = Milliseconds(Clock::now() - begin).count();
      const std::lock_guard lock(mutex);
      slowest = std::max(slowest, taken);
    });
    best = std::min(best, slowest);
  }
  return best;
}

void row(int ranks, Milliseconds transfer, Milliseconds work) {
  const auto overlapped = [&](const std::shared_ptr<comm::Group>& group) {
    SlowGroup slow(group, transfer);
    parallel::Panels panels(slow, at::ones({4}));
    for (int t = 0; t < ranks; ++t) {
      panels.take(t);
      std::this_thread::sleep_for(work);
    }
  };
  const auto one_by_one = [&](const std::shared_ptr<comm::Group>& group) {
    SlowGroup slow(group, transfer);
    for (int t = 0; t < ranks; ++t) {
      at::Tensor panel = at::ones({4});
      slow.broadcast(panel, t).wait();
      std::this_thread::sleep_for(work);
    }
  };
  const double ours = measure(ranks, overlapped), peer = measure(ranks, one_by_one);
  const double larger = ranks * std::max(transfer.count(), work.count());
  std::printf("%9.1f %9.1f %13.1f %13.1f %13.1f %10.2f %9.2f\n", transfer.count(), work.count(), larger, ours, peer,
              ours / larger, peer / ours);
}

}  // namespace
}  // namespace colossal

int main(int count, char** words) {
  const int ranks = count > 1 ? std::atoi(words[1]) : 12;
  std::printf("%d panels, ms\n transfer      work    max of both    overlapped    one by one   ours/max  peer/ours\n",
              ranks);
  using colossal::Milliseconds;
  for (const auto& [transfer, work] : {std::pair{4.0, 16.0}, {8.0, 16.0}, {16.0, 16.0}, {16.0, 8.0}, {16.0, 4.0}})
    colossal::row(ranks, Milliseconds(transfer), Milliseconds(work));
}
