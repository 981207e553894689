// Turns of clients, counted in steps of the scheduler without a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <string>

#include "colossal/base/error.h"
#include "colossal/infer/decoding/scheduler.h"

namespace colossal::infer::scheduler_turns_test {
namespace {

using Tokens = std::vector<int64_t>;

/// Returns tokens that no other call with a different `first` begins with.
Tokens counted(int64_t count, int64_t first = 0) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

struct Seen {
  int64_t id, first, count;
  bool operator==(const Seen&) const = default;
};
using Steps = std::vector<Seen>;

/// Runs a step. Appends a token to each request whose tokens are complete.
Steps stepped(Scheduler& scheduler) {
  Steps seen;
  for (const Scheduler::ScheduledTokens& scheduled : scheduler.next()) {
    seen.push_back({scheduled.id, scheduled.first, scheduled.count});
    if (scheduled.is_last) scheduler.append(scheduled.id, 7);
  }
  return seen;
}

/// Requests with a number of tokens to generate each, which end after these.
class Load {
 public:
  explicit Load(const SchedulerOptions& options) : scheduler(options) {}

  void add(int64_t id, Tokens prompt, int64_t new_tokens, const Sharing& sharing = {}) {
    prompts[id] = static_cast<int64_t>(prompt.size());
    clients[id] = sharing.client;
    scheduler.add(id, std::move(prompt), new_tokens - 1, sharing);
    left[id] = new_tokens;
  }
  /// Runs a step and returns it. Adds the work of the step to `service`.
  std::vector<Scheduler::ScheduledTokens> step() {
    const std::vector<Scheduler::ScheduledTokens> planned = scheduler.next();
    for (const Scheduler::ScheduledTokens& scheduled : planned) {
      computed += scheduled.count;
      const int64_t id = scheduled.id, end = std::min(scheduled.first + scheduled.count, prompts[id]);
      int64_t& known = read[id];
      if (known == 0) known = scheduler.found(id);
      service[clients[id]] += std::max<int64_t>(0, end - known);
      known = std::max(known, end);
      if (!scheduled.is_last) continue;
      service[clients[id]] += 2;
      scheduler.append(id, id);
      if (--left[id] == 0) remove(id);
    }
    return planned;
  }
  void remove(int64_t id) {
    scheduler.remove(id);
    left.erase(id);
  }
  /// Returns the number of steps until a request gets its first token.
  int64_t steps_to_first_token(int64_t id) {
    for (int64_t steps = 1; steps < 10000; ++steps)
      for (const Scheduler::ScheduledTokens& scheduled : step())
        if (scheduled.id == id && scheduled.is_last) return steps;
    return 10000;
  }

  Scheduler scheduler;
  std::map<int64_t, int64_t> left, prompts, read;  // by request: tokens to generate, prompt tokens, those computed
  std::map<int64_t, std::string> clients;
  std::map<std::string, int64_t> service;  // the counters, without what a return from being idle adds
  int64_t computed = 0;                    // tokens of all steps
};

TEST(SchedulerTurns, GiveEachChunkToTheSmallestCounter) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 4, .step_tokens = 8, .chunk_tokens = 2, .keeps_prefixes = false});
  scheduler.add(0, counted(9), 9, {.client = "b"});
  scheduler.add(1, counted(3), 9, {.client = "b"});
  scheduler.add(2, counted(5), 9, {.client = "a"});
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 4}, {2, 0, 4}}));
  EXPECT_EQ(scheduler.counter("b"), 4);
  // Chunks: 2 of request 0, 1 of request 2, then the rest to the only client with a prompt to read.
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 4, 5}, {2, 4, 1}, {1, 0, 2}}));
  EXPECT_EQ(scheduler.counter("a"), 7) << "5 prompt tokens and one new token";
  EXPECT_EQ(scheduler.counter("b"), 13) << "11 prompt tokens and one new token";
  scheduler.add(3, counted(6), 9, {.client = "a"});
  // Two completions advance. Client a is behind by 6: it gets 3 chunks of 2 before client b.
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 9, 1}, {2, 5, 1}, {3, 0, 6}}));
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 10, 1}, {2, 6, 1}, {1, 2, 1}, {3, 6, 1}}));
}

TEST(SchedulerTurns, CountOnlyNewWork) {
  Scheduler scheduler({.blocks = 5, .block_tokens = 2, .step_tokens = 8});
  scheduler.add(0, counted(5), 3, {.client = "a"});
  stepped(scheduler);
  EXPECT_EQ(scheduler.counter("a"), 5 + 2);
  scheduler.add(1, counted(5), 2, {.client = "b"});
  EXPECT_EQ(scheduler.counter("b"), 7) << "the counter of the active client";
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 5, 1}, {1, 4, 1}}));
  EXPECT_EQ(scheduler.found(1), 4);
  EXPECT_EQ(scheduler.counter("b"), 7 + 1 + 2) << "tokens that are found cost nothing";
  scheduler.remove(0);
  const int64_t before = scheduler.counter("b");
  scheduler.cut(1, 0, 1);
  EXPECT_EQ(scheduler.counter("b"), before);
  stepped(scheduler);
  EXPECT_EQ(scheduler.counter("b"), before + 5 + 2) << "tokens that a cut makes new are computed for the client";
}

TEST(SchedulerTurns, DoNotCountTokensThatAPreemptionComputesAgain) {
  Load load({.blocks = 3, .block_tokens = 2, .step_tokens = 8, .keeps_prefixes = false});
  load.add(0, counted(2), 4, {.client = "a"});
  load.add(1, counted(3), 3, {.client = "a"});
  load.add(2, counted(1), 3, {.client = "b"});
  int64_t a = 0, b = 0;
  while (!load.left.empty()) {
    load.step();
    if (load.scheduler.counter("a") > 0) a = load.scheduler.counter("a");
    if (load.scheduler.counter("b") > 0) b = load.scheduler.counter("b");
  }
  EXPECT_GT(load.scheduler.counts().preempted, 0);
  EXPECT_EQ(a, 2 + 3 + 2 * 7);
  EXPECT_EQ(b, 1 + 2 * 3);
}

// A request that finds cached blocks but no room for the rest has not begun. Blocks that it loses until then cost what
// they cost others.
TEST(SchedulerTurns, CountTokensThatWereFoundBeforeAStartThatFailed) {
  Scheduler scheduler({.blocks = 4, .block_tokens = 2});
  scheduler.add(0, counted(5), 1, {.client = "a"});
  stepped(scheduler);
  scheduler.remove(0);
  scheduler.add(1, counted(4, 50), 3, {.client = "b"});
  EXPECT_EQ(stepped(scheduler), (Steps{{1, 0, 4}}));
  scheduler.add(2, counted(5), 1, {.client = "b"});
  for (int64_t at = 4; at < 8; ++at)  // takes the blocks that request 2 has found
    EXPECT_EQ(stepped(scheduler), (Steps{{1, at, 1}}));
  scheduler.remove(1);
  const int64_t before = scheduler.counter("b");
  EXPECT_EQ(stepped(scheduler), (Steps{{2, 0, 5}}));
  EXPECT_EQ(scheduler.counter("b"), before + 5 + 2);
}

/// Two clients with a request each, of which the cache holds only one at its end. Returns the tokens that were read
/// again, and the bound on them.
std::pair<int64_t, int64_t> read_again_by_two(const SchedulerOptions& options, std::array<int64_t, 2> prompts,
                                              std::array<int64_t, 2> more) {
  Load load(options);
  int64_t once = 0;
  for (int64_t id = 0; id < 2; ++id) {
    load.add(id, counted(prompts[id], 1000 * id), more[id], {.client = std::to_string(id)});
    once += prompts[id] + more[id] - 1;
  }
  for (int steps = 0; !load.left.empty() && steps < 100000; ++steps) load.step();
  EXPECT_TRUE(load.left.empty());
  // Starts that preempt read at most the counted work again. A request starts again in free blocks at most twice: after
  // the first chunk of the other one, and after its end.
  const int64_t bound = load.service["0"] + load.service["1"] + 2 * options.blocks * options.block_tokens;
  return {load.computed - once, bound};
}

TEST(SchedulerTurns, ReadFewTokensAgainIfTwoRequestsDoNotFitTogether) {
  for (const bool keeps_prefixes : {true, false}) {
    const auto [again, bound] =
        read_again_by_two({.blocks = 16, .keeps_prefixes = keeps_prefixes}, {600, 600}, {300, 300});
    EXPECT_GT(again, 0);
    EXPECT_LE(again, 3 * 900) << "each preempts the other one about once";
    EXPECT_LE(again, bound);
  }
  std::mt19937 draw(4);
  const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(draw() % (high - low + 1)); };
  for (int round = 0; round < 200; ++round) {
    const SchedulerOptions options{.blocks = pick(8, 32),
                                   .block_tokens = pick(1, 16),
                                   .step_tokens = pick(2, 200),
                                   .chunk_tokens = pick(1, 64),
                                   .keeps_prefixes = pick(0, 1) == 1};
    const int64_t room = options.blocks * options.block_tokens;
    std::array<int64_t, 2> prompts{}, more{};
    for (int i = 0; i < 2; ++i) {
      prompts[i] = pick(1, room - 1);
      more[i] = pick(std::max<int64_t>(1, room / 2 + 1 - prompts[i]), room - prompts[i]) + 1;
    }
    const auto [again, bound] = read_again_by_two(options, prompts, more);
    ASSERT_LE(again, bound) << "round " << round;
  }
}

TEST(SchedulerTurns, StartANewRequestWhileAPreemptedOneWaits) {
  Load load({.blocks = 16});
  for (int64_t id = 0; id < 2; ++id) load.add(id, counted(600, 1000 * id), 300, {.client = std::to_string(id)});
  bool has_waited = false;
  for (int64_t id = 2; load.left.count(0) == 1 && load.left.count(1) == 1; ++id) {
    for (int i = 0; i < 5; ++i) load.step();
    has_waited |= load.scheduler.blocks(0).empty() || load.scheduler.blocks(1).empty();
    load.add(id, counted(64, 1000 * id), 1 + id % 4, {.client = std::to_string(id)});
    ASSERT_LE(load.steps_to_first_token(id), 2) << "request " << id;
    while (load.left.count(id) == 1) load.step();
  }
  EXPECT_TRUE(has_waited);
}

// New clients begin at the smallest counter, and take every block and slot that gets free.
TEST(SchedulerTurns, StartAPreemptedRequestAgainBesideAStreamOfNewClients) {
  Load load({.blocks = 16, .max_running = 4, .keeps_prefixes = false});
  load.add(0, counted(900), 100, {.client = "long"});
  int64_t next = 1, steps = 0;
  for (; load.left.count(0) == 1; ++steps) {
    ASSERT_LT(steps, 20000);
    while (load.left.size() < 12) {
      load.add(next, counted(200, 1000 * next), 4, {.client = std::to_string(next)});
      ++next;
    }
    load.step();
  }
  EXPECT_GT(load.scheduler.counts().preempted, 0);
}

TEST(SchedulerTurns, GiveAChunkBesideCompletionsThatWouldFillTheStep) {
  Load load({.step_tokens = 64});
  for (int64_t id = 0; id < 200; ++id) load.add(id, counted(3, 100 * id), 400, {.client = "many"});
  for (int i = 0; i < 20; ++i) load.step();
  for (int64_t id = 1000; id < 1010; ++id) {
    load.add(id, counted(32, 1000 * id), 3, {.client = std::to_string(id)});
    ASSERT_LE(load.steps_to_first_token(id), 2);
    while (load.left.count(id) == 1) load.step();
  }
  std::map<int64_t, int64_t> before = load.left;
  load.step();
  int64_t advanced = 0;
  for (const auto& [id, left] : load.left) advanced += before.at(id) - left;
  EXPECT_EQ(advanced, load.scheduler.options().max_running) << "each running completion advances";
}

TEST(SchedulerTurns, RaiseTheCounterOfAClientThatReturns) {
  Scheduler scheduler({.step_tokens = 64});
  scheduler.add(0, counted(9), 9, {.client = "idle"});
  scheduler.add(1, counted(20), 9, {.client = "busy"});
  stepped(scheduler);
  scheduler.remove(0);
  for (int i = 0; i < 3; ++i) stepped(scheduler);
  EXPECT_EQ(scheduler.counter("busy"), 20 + 4 * 2);
  scheduler.add(2, counted(9, 70), 9, {.client = "idle"});
  EXPECT_EQ(scheduler.counter("idle"), 28);
  stepped(scheduler), stepped(scheduler);
  scheduler.remove(2);
  stepped(scheduler);
  scheduler.add(3, counted(9, 50), 9, {.client = "idle"});
  EXPECT_EQ(scheduler.counter("idle"), 28 + 9 + 2 * 2) << "a client that is ahead stays ahead";
  scheduler.remove(1), scheduler.remove(3);
  scheduler.add(4, counted(9), 9, {.client = "idle"});
  EXPECT_EQ(scheduler.counter("idle"), 0) << "all clients were idle";
}

TEST(SchedulerTurns, WaitForRoomInsteadOfChoosingAnotherRequest) {
  Scheduler scheduler({.blocks = 9, .block_tokens = 4, .step_tokens = 32, .chunk_tokens = 8, .keeps_prefixes = false});
  scheduler.add(0, counted(4), 9, {.client = "small"});
  scheduler.add(1, counted(22), 2, {.client = "large"});
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 4}, {1, 0, 22}}));
  // Client `small` is behind. Its next request needs two blocks of which one is free, so a request that needs one block
  // waits, too. Neither preempts, because their clients have running requests.
  scheduler.add(2, counted(8), 9, {.client = "small"});
  scheduler.add(3, counted(2), 2, {.client = "large"});
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 4, 1}, {1, 22, 1}}));
  EXPECT_EQ(scheduler.pool().free(), 1);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 5, 1}, {1, 23, 1}}));
  scheduler.remove(1);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 6, 1}, {2, 0, 8}, {3, 0, 2}}));
  EXPECT_EQ(scheduler.counts().preempted, 0);
}

TEST(SchedulerTurns, PreemptTheYoungestRequestOfTheLargestCounter) {
  for (const bool by_slots : {true, false}) {
    Scheduler scheduler({.blocks = by_slots ? 64 : 4,
                         .block_tokens = 8,
                         .step_tokens = 64,
                         .max_running = by_slots ? 4 : 64,
                         .keeps_prefixes = false});
    for (int64_t id = 0; id < 2; ++id) scheduler.add(id, counted(2), 5, {.client = "middle"});
    for (int64_t id = 2; id < 5; ++id) scheduler.add(id, counted(4), 3, {.client = "large"});
    EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 2}, {2, 0, 4}, {1, 0, 2}, {3, 0, 4}}));
    scheduler.add(5, counted(3), 5, {.client = "new"});
    EXPECT_EQ(scheduler.counter("new"), 2 * 2 + 2 * 2);
    // Equal counters: `middle` is active for longer. In the next step it is ahead, and `large` is ahead of both.
    EXPECT_EQ(stepped(scheduler), (Steps{{0, 2, 1}, {2, 4, 1}, {1, 2, 1}, {5, 0, 3}})) << by_slots;
    EXPECT_EQ(scheduler.counts().preempted, 1);
    EXPECT_TRUE(scheduler.blocks(3).empty());
    EXPECT_EQ(scheduler.waiting(), 1) << "request 4; a preempted request has had its first step";
    EXPECT_EQ(scheduler.running(), 5);
    scheduler.remove(2);
    EXPECT_EQ(stepped(scheduler), (Steps{{0, 3, 1}, {1, 3, 1}, {5, 3, 1}, {3, 0, 5}})) << "request 3 before request 4";
  }
}

// For the default cache, and for caches that hold all and few of the requests.
TEST(SchedulerTurns, GiveAFirstTokenWithinTwoStepsBesideAThousandRequests) {
  for (const int64_t blocks : {256, 4096, 16}) {
    Load load({.blocks = blocks});
    std::mt19937 draw(1);
    for (int64_t id = 0; id < 1000; ++id)
      load.add(id, counted(1 + static_cast<int64_t>(draw() % 300), 1000 * id), 1 + static_cast<int64_t>(draw() % 200),
               {.client = "many"});
    for (int64_t id = 1000; id < 1040; ++id) {
      for (auto steps = draw() % 5; steps > 0; --steps) load.step();
      load.add(id, counted(64, 1000 * id), 1 + static_cast<int64_t>(draw() % 8), {.client = std::to_string(id)});
      ASSERT_LE(load.steps_to_first_token(id), 2) << "request " << id << ", " << blocks << " blocks";
      while (load.left.count(id) == 1) load.step();
    }
    EXPECT_GT(load.left.size(), 256u) << "the other client had requests waiting all the time";
  }
}

TEST(SchedulerTurns, GiveAFirstTokenWithinTwoStepsBesideALongPrompt) {
  constexpr int64_t kLength = 100000;
  const int64_t exact = (kLength + 20 + 63) / 64;  // the long prompt and its completion fill the cache
  for (const int64_t blocks : {2 * exact, exact}) {
    Load load({.blocks = blocks});
    load.add(0, counted(kLength), 20, {.client = "long"});
    for (int64_t id = 1; load.left.count(0) == 1; ++id) {
      ASSERT_LT(id, 2000);
      load.add(id, counted(64, kLength + 1000 * id), 1 + id % 7, {.client = "one"});
      ASSERT_LE(load.steps_to_first_token(id), 2) << "request " << id << ", " << blocks << " blocks";
      while (load.left.count(id) == 1) load.step();
    }
    EXPECT_TRUE(load.left.empty());
    EXPECT_EQ(load.scheduler.pool().free(), blocks);
  }
}

// A client that is ahead starts no prompt while the other one has a request to start. So it gets ahead by at most the
// prompt that it has begun and the completions of its running requests.
TEST(SchedulerTurns, BoundTheDifferenceOfBusyClients) {
  constexpr int64_t kPrompt = 200, kNew = 20, kRunning = 8;
  Load load({.blocks = 1024, .step_tokens = 128, .max_running = kRunning});
  std::mt19937 draw(2);
  for (int64_t id = 0; id < 600; ++id) {
    const bool is_first = id < 300;  // the requests of the first client arrive before all of the second client
    load.add(id, counted(is_first ? kPrompt : 1 + static_cast<int64_t>(draw() % kPrompt), 1000 * id),
             is_first ? 1 + static_cast<int64_t>(draw() % kNew) : kNew, {.client = is_first ? "a" : "b"});
  }
  const auto is_busy = [&](int64_t first, int64_t end) {
    return std::distance(load.left.lower_bound(first), load.left.lower_bound(end)) > kRunning;
  };
  int64_t most = 0;
  while (is_busy(0, 300) && is_busy(300, 600)) {
    load.step();
    most = std::max(most, std::abs(load.service["a"] - load.service["b"]));
    ASSERT_EQ(load.service["a"], load.scheduler.counter("a"));
    ASSERT_EQ(load.service["b"], load.scheduler.counter("b"));
  }
  EXPECT_LE(most, kPrompt + 2 * kNew * kRunning);
  EXPECT_GT(load.service["a"], 20 * most) << "the bound is small beside the work";
}

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
TEST(SchedulerTurns, CompleteEveryRequestInTheOrderOfItsClient) {
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

TEST(SchedulerTurns, ServeOneClientInArrivalOrder) {
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

TEST(SchedulerTurns, DoNotDependOnTheNamesOfClients) {
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
}  // namespace colossal::infer::scheduler_turns_test
