// Turns of clients under random loads: what holds for every one of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "colossal/infer/decoding/scheduler.h"
#include "infer/scheduler_load.h"

namespace colossal::infer::random_turns_test {
namespace {

using scheduler_load::counted;
using scheduler_load::Load;
using scheduler_load::Steps;

/// The options and the calls of a random load with small pools; the same for the same seed.
struct RandomLoad {
  explicit RandomLoad(unsigned seed) : draw(seed) {}
  int64_t pick(int64_t low, int64_t high) { return low + static_cast<int64_t>(draw() % (high - low + 1)); }
  SchedulerOptions options() {
    return {.blocks = pick(4, 12),
            .block_tokens = pick(1, 5),
            .step_tokens = pick(1, 12),
            .max_running = pick(1, 5),
            .chunk_tokens = pick(1, 4),
            .keeps_prefixes = pick(0, 1) == 1};
  }
  std::mt19937 draw;
};

// Every request ends, for any clients, keys and requests that share a prompt. Each client's requests start in their
// order. Blocks are counted by their owners, and none is left at the end.
TEST(RandomTurns, CompleteEveryRequestInTheOrderOfItsClient) {
  int64_t preempted = 0;
  for (unsigned round = 0; round < 150; ++round) {
    RandomLoad random(round);
    const SchedulerOptions options = random.options();
    const int64_t room = options.blocks * options.block_tokens, clients = random.pick(1, 5);
    Load load(options);
    std::map<std::string, int64_t> started;  // by client: the last request that started
    int64_t next = 0;
    for (int64_t step = 0; next < 24 || !load.left.empty(); ++step) {
      ASSERT_LT(step, 20000) << "round " << round;
      if (next < 24 && random.pick(0, 1) == 1) {
        const int64_t length = random.pick(1, room), after = next > 0 ? random.pick(-1, next - 1) : -1;
        load.add(next++, counted(length, random.pick(0, 1)), random.pick(1, std::min<int64_t>(room - length, 9) + 1),
                 {.client = std::to_string(random.pick(1, clients)),
                  .cache_key = std::to_string(random.pick(0, 1)),
                  .after = random.pick(0, 3) == 0 ? after : -1});
      }
      int64_t tokens = 0;
      std::set<int64_t> ids;
      for (const Scheduler::ScheduledTokens& scheduled : load.step()) {
        ASSERT_TRUE(ids.insert(scheduled.id).second) << "a request has its tokens of a step in one piece";
        int64_t& last = started.try_emplace(load.clients[scheduled.id], -1).first->second;
        for (auto [id, left] : load.left) {
          const bool is_passed = last < id && id < scheduled.id && load.clients[id] == load.clients[scheduled.id];
          ASSERT_FALSE(is_passed) << "request " << scheduled.id << " overtakes in round " << round;
        }
        last = std::max(last, scheduled.id);
        tokens += scheduled.count;
      }
      ASSERT_LE(tokens, options.step_tokens);
      if (!load.left.empty() && random.pick(0, 40) == 0)
        load.remove(std::next(load.left.begin(), random.pick(0, static_cast<int64_t>(load.left.size()) - 1))->first);
      int64_t held = 0;
      std::set<int32_t> blocks;
      for (auto [id, left] : load.left)
        for (const int32_t block : load.scheduler.blocks(id)) blocks.insert(block), ++held;
      ASSERT_EQ(load.scheduler.pool().free(), options.blocks - static_cast<int64_t>(blocks.size()));
      ASSERT_TRUE(options.keeps_prefixes || held == static_cast<int64_t>(blocks.size())) << "no block has two owners";
    }
    EXPECT_FALSE(load.scheduler.has_work());
    EXPECT_EQ(load.scheduler.pool().free(), options.blocks);
    EXPECT_EQ(load.scheduler.waiting() + load.scheduler.running(), 0);
    preempted += load.scheduler.counts().preempted;
  }
  EXPECT_GT(preempted, 1000);
}

/// The rule for one client, written a second time: arrival order, for requests that share no blocks.
class ArrivalOrder {
 public:
  explicit ArrivalOrder(const SchedulerOptions& options) : options_(options), free_(options.blocks) {}
  void add(int64_t id, int64_t tokens) { waiting_.push_back(id), requests_[id] = {tokens}; }
  void append(int64_t id) { ++requests_[id].tokens; }
  void remove(int64_t id) {
    take(requests_[id], 0);
    std::erase(running_, id), std::erase(waiting_, id);
    requests_.erase(id);
  }
  Steps next() {
    Steps step;
    int64_t left = options_.step_tokens;
    for (size_t i = 0; i < running_.size(); ++i) {
      Request& request = requests_[running_[i]];
      const int64_t count = std::min(request.tokens - request.held, left);
      while (i < running_.size() && blocks_for(request.held + count) - request.blocks > free_) preempt_last();
      if (i < running_.size()) compute(running_[i], count, step), left -= count;
    }
    while (!waiting_.empty() && left > 0 && static_cast<int64_t>(running_.size()) < options_.max_running) {
      const int64_t id = waiting_.front(), count = std::min(requests_[id].tokens, left);
      const int64_t blocks = blocks_for(requests_[id].has_run ? requests_[id].tokens : count);
      if (blocks > free_) break;
      waiting_.pop_front(), running_.push_back(id);
      take(requests_[id], blocks);
      compute(id, count, step), left -= count;
    }
    return step;
  }

 private:
  struct Request {
    int64_t tokens, held = 0, blocks = 0;
    bool has_run = false;
  };
  int64_t blocks_for(int64_t tokens) const { return (tokens + options_.block_tokens - 1) / options_.block_tokens; }
  void take(Request& request, int64_t blocks) {
    free_ += request.blocks - blocks;
    request.blocks = blocks;
  }
  void preempt_last() {
    take(requests_[running_.back()], 0);
    requests_[running_.back()].held = 0;
    waiting_.push_front(running_.back()), running_.pop_back();
  }
  void compute(int64_t id, int64_t count, Steps& step) {
    Request& request = requests_[id];
    if (count > 0) step.push_back({id, request.held, count});
    request.held += count, request.has_run = true;
    take(request, std::max(request.blocks, blocks_for(request.held)));
  }
  SchedulerOptions options_;
  int64_t free_;
  std::map<int64_t, Request> requests_;
  std::deque<int64_t> waiting_;
  std::vector<int64_t> running_;
};

TEST(RandomTurns, ServeOneClientInArrivalOrder) {
  int64_t preempted = 0;
  for (unsigned round = 0; round < 300; ++round) {
    RandomLoad random(round);
    SchedulerOptions options = random.options();
    options.keeps_prefixes = false;
    const int64_t room = options.blocks * options.block_tokens;
    Scheduler scheduler(options);
    ArrivalOrder expected(scheduler.options());
    std::map<int64_t, int64_t> left;
    for (int64_t next = 0; next < 20 || !left.empty();) {
      if (next < 20 && random.pick(0, 1) == 1) {
        const int64_t length = random.pick(1, std::min<int64_t>(room, 20)), more = random.pick(0, room - length);
        scheduler.add(next, counted(length), more);
        expected.add(next, length);
        left[next++] = more + 1;
      }
      Steps step;
      std::vector<int64_t> complete;
      for (const Scheduler::ScheduledTokens& scheduled : scheduler.next()) {
        step.push_back({scheduled.id, scheduled.first, scheduled.count});
        if (scheduled.is_last) complete.push_back(scheduled.id);
      }
      ASSERT_EQ(step, expected.next()) << "round " << round;
      for (const int64_t id : complete) {
        scheduler.append(id, 7), expected.append(id);
        if (--left[id] == 0) scheduler.remove(id), expected.remove(id), left.erase(id);
      }
    }
    preempted += scheduler.counts().preempted;
  }
  EXPECT_GT(preempted, 500);
}

TEST(RandomTurns, DoNotDependOnTheNamesOfClients) {
  for (unsigned round = 0; round < 50; ++round) {
    std::array<std::vector<Steps>, 2> steps;
    for (const size_t naming : {0, 1}) {
      RandomLoad random(round);
      Load load(random.options());
      for (int64_t id = 0; id < 20; ++id) {
        const int64_t client = random.pick(0, 3);
        load.add(id, counted(random.pick(1, 3), id % 2), random.pick(1, 2),
                 {.client = std::to_string(naming == 0 ? client : 9 - client)});
        steps[naming].emplace_back();
        for (const Scheduler::ScheduledTokens& scheduled : load.step())
          steps[naming].back().push_back({scheduled.id, scheduled.first, scheduled.count});
      }
    }
    EXPECT_EQ(steps[0], steps[1]);
  }
}

}  // namespace
}  // namespace colossal::infer::random_turns_test
