// Turns of clients, counted in steps of the scheduler without a model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "colossal/infer/decoding/scheduler.h"
#include "infer/scheduler_load.h"

namespace colossal::infer::scheduler_turns_test {
namespace {

using scheduler_load::counted;
using scheduler_load::Load;
using scheduler_load::Steps;
using scheduler_load::Tokens;

/// Runs a step. Appends a token to each request whose tokens are complete.
Steps stepped(Scheduler& scheduler) {
  Steps seen;
  for (const Scheduler::ScheduledTokens& scheduled : scheduler.next()) {
    seen.push_back({scheduled.id, scheduled.first, scheduled.count});
    if (scheduled.is_last) scheduler.append(scheduled.id, 7);
  }
  return seen;
}

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

}  // namespace
}  // namespace colossal::infer::scheduler_turns_test
