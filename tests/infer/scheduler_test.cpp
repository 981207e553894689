#include "colossal/infer/decoding/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "colossal/base/error.h"

namespace colossal::infer::scheduler_test {
namespace {

using Tokens = std::vector<int64_t>;

Tokens counted(int64_t count, int64_t first = 0) {
  Tokens tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

struct Seen {
  int64_t id, first, count;
  bool operator==(const Seen&) const = default;
};

/// Returns the scheduled tokens of a step. Appends one token to each request whose tokens are complete.
std::vector<Seen> stepped(Scheduler& scheduler) {
  std::vector<Seen> seen;
  for (const Scheduler::ScheduledTokens& scheduled : scheduler.next()) {
    seen.push_back({scheduled.id, scheduled.first, scheduled.count});
    if (scheduled.is_last) scheduler.append(scheduled.id, 7);
  }
  return seen;
}

using Steps = std::vector<Seen>;

TEST(Scheduler, ChunksPromptsBetweenTokensOfOthers) {
  Scheduler scheduler({.blocks = 16, .block_tokens = 4, .step_tokens = 5, .chunk_tokens = 2, .keeps_prefixes = false});
  scheduler.add(0, counted(3), 9);
  scheduler.add(1, counted(8), 9);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 3}, {1, 0, 2}}));
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 3, 1}, {1, 2, 4}}));
  scheduler.add(2, counted(4), 9);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 4, 1}, {1, 6, 2}, {2, 0, 2}}));
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 5, 1}, {1, 8, 1}, {2, 2, 2}}));
}

TEST(Scheduler, LimitsRunningRequests) {
  Scheduler scheduler({.blocks = 16, .block_tokens = 4, .step_tokens = 64, .max_running = 2});
  for (int64_t id = 0; id < 3; ++id) scheduler.add(id, counted(3), 9);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 3}, {1, 0, 3}}));
  scheduler.remove(0);
  EXPECT_EQ(stepped(scheduler), (Steps{{1, 3, 1}, {2, 0, 3}}));
}

TEST(Scheduler, LeavesRoomForAChunkInEachStep) {
  const auto options = [](int64_t step_tokens, int64_t max_running) {
    const SchedulerOptions used = Scheduler({.step_tokens = step_tokens, .max_running = max_running}).options();
    return std::pair(used.max_running, used.chunk_tokens);
  };
  EXPECT_EQ(options(512, 256), std::pair(int64_t{256}, int64_t{64}));
  EXPECT_EQ(options(256, 256), std::pair(int64_t{192}, int64_t{64}));
  EXPECT_EQ(options(64, 256), std::pair(int64_t{32}, int64_t{32}));
  EXPECT_EQ(options(3, 256), std::pair(int64_t{1}, int64_t{2}));
  EXPECT_EQ(options(1, 256), std::pair(int64_t{1}, int64_t{1}));
}

TEST(Scheduler, PreemptsTheNewestRequest) {
  Scheduler scheduler({.blocks = 3, .block_tokens = 2, .step_tokens = 8, .keeps_prefixes = false});
  scheduler.add(0, counted(2), 4);
  scheduler.add(1, counted(3), 2);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 2}, {1, 0, 3}}));
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 2, 1}}));  // needs a second block: request 1 is preempted
  EXPECT_EQ(scheduler.counts().preempted, 1);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 3, 1}}));
  scheduler.remove(0);
  EXPECT_EQ(stepped(scheduler), (Steps{{1, 0, 4}}));  // includes the token it generated before
}

TEST(Scheduler, ReusesCachedPrefixes) {
  Scheduler scheduler({.blocks = 16, .block_tokens = 4, .step_tokens = 64});
  scheduler.add(0, counted(11), 4);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 11}}));
  scheduler.add(1, counted(11), 4);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 11, 1}, {1, 8, 3}}));
  scheduler.remove(0);
  Tokens other = counted(11);
  other[5] = 99;
  scheduler.add(2, other, 4);
  EXPECT_EQ(stepped(scheduler), (Steps{{1, 11, 1}, {2, 4, 7}}));
  EXPECT_EQ(scheduler.counts().prompt_tokens, 33);
  EXPECT_EQ(scheduler.counts().found_tokens, 12);
}

TEST(Scheduler, RefusesRequestsThatNeverFit) {
  Scheduler scheduler({.blocks = 2, .block_tokens = 4});
  EXPECT_THROW(scheduler.add(0, {}, 1), Error);
  EXPECT_THROW(scheduler.add(0, counted(5), 4), Error);
  scheduler.add(0, counted(4), 4);
  EXPECT_THROW(scheduler.add(0, counted(4), 4), Error);
  EXPECT_THROW(scheduler.remove(1), Error);
  EXPECT_THROW(Scheduler({.step_tokens = 0}), Error);
}

// Random requests with small pools. Every token of each request is computed once, in order, between two preemptions. No
// step exceeds its budget, and all requests end.
TEST(Scheduler, CompletesEveryRequest) {
  std::mt19937 draw(3);
  for (int round = 0; round < 300; ++round) {
    const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(draw() % (high - low + 1)); };
    const SchedulerOptions options{.blocks = pick(4, 12),
                                   .block_tokens = pick(1, 5),
                                   .step_tokens = pick(1, 9),
                                   .max_running = pick(1, 5),
                                   .keeps_prefixes = round % 2 == 0};
    Scheduler scheduler(options);
    std::map<int64_t, int64_t> left, held;  // tokens still to generate; tokens computed
    int64_t next = 0, begun = 0;
    for (int step = 0; left.size() > 0 || next < 12; ++step) {
      ASSERT_LT(step, 5000);
      if (next < 12 && draw() % 2) {
        const int64_t room = options.blocks * options.block_tokens, length = pick(1, std::min<int64_t>(room, 20));
        const int64_t more = pick(0, std::min<int64_t>(room - length, 6));
        scheduler.add(next, counted(length, pick(0, 1)), more);
        left[next] = more + 1, held[next] = 0;
        ++next;
      }
      const Scheduler::Counts before = scheduler.counts();
      const std::vector<Scheduler::ScheduledTokens> planned = scheduler.next();
      int64_t tokens = 0;
      for (const Scheduler::ScheduledTokens& scheduled : planned) {
        const bool continues = scheduled.first == held[scheduled.id];
        const bool begins_again = scheduler.counts().prompt_tokens > before.prompt_tokens;
        ASSERT_TRUE(continues || begins_again) << "request " << scheduled.id << " at " << scheduled.first;
        // No request starts before one that arrived earlier, or before a preempted request has blocks again.
        ASSERT_LE(scheduled.id, begun);
        if (scheduled.id == begun) {
          for (const auto& [id, tokens] : left)
            if (id < begun) ASSERT_FALSE(scheduler.blocks(id).empty()) << id << " waits, " << scheduled.id << " begins";
        }
        begun = std::max(begun, scheduled.id + 1);
        tokens += scheduled.count;
        held[scheduled.id] = scheduled.first + scheduled.count;
        ASSERT_EQ(scheduled.is_last, held[scheduled.id] == static_cast<int64_t>(scheduler.tokens(scheduled.id).size()));
        ASSERT_GE(static_cast<int64_t>(scheduler.blocks(scheduled.id).size()) * options.block_tokens,
                  held[scheduled.id]);
      }
      ASSERT_LE(tokens, options.step_tokens);
      for (const Scheduler::ScheduledTokens& scheduled : planned) {
        if (!scheduled.is_last) continue;
        if (--left[scheduled.id] > 0) {
          scheduler.append(scheduled.id, pick(0, 1));
        } else {
          scheduler.remove(scheduled.id);
          left.erase(scheduled.id);
        }
      }
    }
    EXPECT_FALSE(scheduler.has_work());
    EXPECT_EQ(scheduler.pool().free(), options.blocks);
  }
}

/// Content of the blocks, written and read like a model does: each position holds the tokens of its sequence up to
/// there.
class Memory {
 public:
  explicit Memory(const SchedulerOptions& options)
      : options_(options), places_(options.blocks * options.block_tokens) {}
  void write(const Scheduler::ScheduledTokens& scheduled, const Scheduler& scheduler) {
    Tokens text = scheduler.tokens(scheduled.id);
    text.insert(text.end(), scheduler.proposed(scheduled.id).begin(), scheduler.proposed(scheduled.id).end());
    for (int64_t i = scheduled.first; i < scheduled.first + scheduled.count + scheduled.proposed; ++i)
      place(scheduler, scheduled.id, i) = Tokens(text.begin(), text.begin() + i + 1);
  }
  /// Returns true if each of the scheduled tokens finds the entries that it attends to.
  bool is_there(const Scheduler::ScheduledTokens& scheduled, const Scheduler& scheduler) {
    const Tokens& text = scheduler.tokens(scheduled.id);
    for (int64_t i = scheduled.first; i < scheduled.first + scheduled.count; ++i)
      for (int64_t seen = options_.window > 0 ? std::max<int64_t>(0, i - options_.window + 1) : 0; seen <= i; ++seen)
        if (place(scheduler, scheduled.id, seen) != Tokens(text.begin(), text.begin() + seen + 1)) return false;
    return true;
  }

 private:
  Tokens& place(const Scheduler& scheduler, int64_t id, int64_t i) {
    const int64_t block = scheduler.blocks(id).at(static_cast<size_t>(i / options_.block_tokens));
    return places_.at(static_cast<size_t>(block * options_.block_tokens + i % options_.block_tokens));
  }
  SchedulerOptions options_;
  std::vector<Tokens> places_;
};

TEST(Scheduler, ReservesOnlyFreeBlocks) {
  Scheduler scheduler({.blocks = 5, .block_tokens = 4});
  scheduler.add(0, counted(4, 0), 9);
  scheduler.add(1, counted(3, 1), 0);
  ASSERT_EQ(scheduler.next().size(), 2u);  // a block each
  scheduler.append(0, 7);
  scheduler.accept(0, 0);
  EXPECT_EQ(scheduler.reserve(0, 4), 4);
  EXPECT_EQ(scheduler.reserve(0, 9), 12);
  EXPECT_EQ(scheduler.pool().free(), 1);
  EXPECT_EQ(scheduler.reserve(0, 40), 16) << "no other block is free, and no request gives one up";
  EXPECT_EQ(scheduler.blocks(1).size(), 1u);
  scheduler.release(0);
  EXPECT_EQ(scheduler.blocks(0).size(), 1u);
  EXPECT_EQ(scheduler.pool().free(), 3);
  EXPECT_EQ(scheduler.counts().preempted, 0);
}

// Random sequences with common prefixes, draft tokens and cancellations; with a window they may be longer than the
// pool. Each token finds the entries that it attends to after any preemption, release, sharing and reuse.
TEST(Scheduler, KeepsEveryEntryThatTokensAttendTo) {
  std::mt19937 draw(7);
  int64_t preempted = 0, found = 0, beyond = 0;
  for (int round = 0; round < 400; ++round) {
    const auto pick = [&](int64_t low, int64_t high) { return low + static_cast<int64_t>(draw() % (high - low + 1)); };
    SchedulerOptions options{.blocks = pick(4, 12),
                             .block_tokens = pick(1, 5),
                             .step_tokens = pick(1, 9),
                             .max_running = pick(1, 5),
                             .keeps_prefixes = round % 4 != 0};
    const int64_t room = options.blocks * options.block_tokens;
    options.window = round % 2 == 0 ? pick(1, 12) : 0;
    const int64_t least = (options.window + options.step_tokens + options.block_tokens - 1) / options.block_tokens;
    const bool slides = options.window > 0 && least < options.blocks;
    Scheduler scheduler(options);
    Memory memory(options);
    std::map<int64_t, int64_t> left;  // tokens still to generate
    int64_t next = 0;
    for (int step = 0; left.size() > 0 || next < 10; ++step) {
      ASSERT_LT(step, 20000);
      if (next < 10 && draw() % 2) {
        const int64_t most = slides ? 2 * room : room, length = pick(1, most), more = pick(0, most - length);
        scheduler.add(next, counted(length, pick(0, 1)), more);
        beyond += length + more > room;
        left[next++] = more + 1;
      }
      const std::vector<Scheduler::ScheduledTokens> planned = scheduler.next();
      for (const Scheduler::ScheduledTokens& scheduled : planned) memory.write(scheduled, scheduler);
      for (const Scheduler::ScheduledTokens& scheduled : planned)
        ASSERT_TRUE(memory.is_there(scheduled, scheduler)) << round << " " << scheduled.first;
      for (const Scheduler::ScheduledTokens& scheduled : planned) {
        if (!scheduled.is_last) continue;
        const Tokens proposed = scheduler.proposed(scheduled.id);
        int64_t accepted = 0;
        while (--left[scheduled.id] > 0) {
          const bool goes_on = accepted < scheduled.proposed && draw() % 3;
          scheduler.append(scheduled.id, goes_on ? proposed[accepted] : pick(0, 1));
          if (!goes_on) break;
          ++accepted;
        }
        if (left[scheduled.id] == 0) {
          scheduler.remove(scheduled.id);
          left.erase(scheduled.id);
          continue;
        }
        scheduler.accept(scheduled.id, accepted);
        const auto length = static_cast<int64_t>(scheduler.tokens(scheduled.id).size());
        if (draw() % 20 == 0) {
          const int64_t first = pick(0, length - 1);
          scheduler.cut(scheduled.id, first, pick(0, length - 1 - first));
        }
        scheduler.propose(scheduled.id, Tokens(static_cast<size_t>(std::min(pick(0, 3), left[scheduled.id] - 1)), 5));
      }
      // Any request may be removed at any time, including a waiting one.
      if (!left.empty() && draw() % 40 == 0) {
        const int64_t id = std::next(left.begin(), pick(0, static_cast<int64_t>(left.size()) - 1))->first;
        scheduler.remove(id);
        left.erase(id);
      }
    }
    EXPECT_FALSE(scheduler.has_work());
    EXPECT_EQ(scheduler.pool().free(), options.blocks);
    preempted += scheduler.counts().preempted, found += scheduler.counts().found_tokens;
  }
  EXPECT_GT(preempted, 100);
  EXPECT_GT(found, 1000);
  EXPECT_GT(beyond, 100);
}

TEST(Scheduler, ReadsAPromptOfSeveralCompletionsOnce) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 4, .step_tokens = 8, .chunk_tokens = 2});
  scheduler.add(0, counted(14), 9);
  for (int64_t id = 1; id < 4; ++id) scheduler.add(id, counted(14), 9, {.after = 0});
  scheduler.add(4, counted(2, 50), 9);
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 8}}));
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 8, 6}})) << "requests of a client keep their order";
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 14, 1}, {1, 12, 2}, {2, 12, 2}, {3, 12, 2}, {4, 0, 1}}));
  EXPECT_EQ(scheduler.found(0), 0);
  for (int64_t id = 1; id < 4; ++id) EXPECT_EQ(scheduler.found(id), 12);
}

TEST(Scheduler, StartsACompletionAfterARequestThatEnded) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 4, .step_tokens = 4, .chunk_tokens = 2});
  scheduler.add(0, counted(14), 9);
  scheduler.add(1, counted(14), 9, {.after = 0});
  scheduler.add(2, counted(2, 50), 9, {.client = "other", .after = 99});
  EXPECT_EQ(stepped(scheduler), (Steps{{0, 0, 2}, {2, 0, 2}})) << "request 99 is unknown";
  scheduler.remove(0);
  EXPECT_EQ(stepped(scheduler), (Steps{{2, 2, 1}, {1, 0, 3}}));
}

TEST(Scheduler, FindsPrefixesUnderTheirOwnKeyOnly) {
  Scheduler scheduler({.blocks = 64, .block_tokens = 4});
  const std::array<std::string, 3> keys{"", "a", "b"};
  for (int64_t id = 0; id < 6; ++id) {
    // The second request of each key begins like the first ones of all keys, also after a token of its completion.
    Tokens prompt = counted(11);
    if (id >= 3) prompt.insert(prompt.end(), {7, 8, 9});
    scheduler.add(id, prompt, 9, {.client = keys[(id + 1) % 3], .cache_key = keys[id % 3]});
    stepped(scheduler), stepped(scheduler);
    EXPECT_EQ(scheduler.found(id), id < 3 ? 0 : 12);
    scheduler.remove(id);
  }
}

}  // namespace
}  // namespace colossal::infer::scheduler_test
