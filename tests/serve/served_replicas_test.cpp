// Several engines behind one Replicas, each on two thread ranks: answers, ends, errors of one replica.
#include "colossal/serve/replicas/served_replicas.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/run/saved_model.h"
#include "colossal/serve/engine_loop.h"
#include "infer/engine_answers.h"
#include "support/decorated_world.h"
#include "support/generated_text.h"
#include "support/thrown_message.h"

namespace colossal::serve::served_replicas_test {
namespace {

using infer::Event;
using infer::FinishReason;
using infer::engine_test::Tokens;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kReplicas = 2;
const infer::EngineOptions kSmallCache{.cache_bytes = 1 << 20, .block_tokens = 16};

/// A group that throws after its flag is set.
class BreakableGroup final : public comm::GroupDecorator {
 public:
  BreakableGroup(std::shared_ptr<comm::Group> inner, const std::atomic<bool>& is_broken)
      : GroupDecorator(std::move(inner)), is_broken_(is_broken) {}
  comm::Work issue(const comm::Call& call) override {
    require(!is_broken_, "comm", "rank 3 has died");
    return inner_->issue(call);
  }

 private:
  const std::atomic<bool>& is_broken_;
};

/// One rank of a replica.
struct Rank {
  comm::World& world;
  comm::PartOfWorld& part;
  comm::Mesh& mesh;
  const run::SavedModel& saved;
  infer::Engine& engine;
  EngineLoop& loop;
};

class ServedReplicasOf : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<test::TemporaryFolder>();
    test::write_model(*folder, "llama-tiny");
  }
  static void TearDownTestSuite() { folder.reset(); }

  /// Runs `work` on every rank of two replicas, each on as many ranks as the parameter. The groups of
  /// rank 0 of replica 1 throw after `breaks_second` is set.
  void on_ranks(const std::function<void(Rank&)>& work) {
    distributed::ParallelConfig layout;
    layout.tensor.size = GetParam();
    comm::run_ranks(kReplicas * GetParam(), [&](comm::World& world) {
      comm::PartOfWorld part(world, kReplicas);
      test::DecoratedWorld breakable(part, [&](std::shared_ptr<comm::Group> group) -> std::shared_ptr<comm::Group> {
        if (world.rank() != part.size()) return group;
        return std::make_shared<BreakableGroup>(std::move(group), breaks_second);
      });
      comm::Mesh mesh(breakable, layout.axes());
      const run::SavedModel saved = run::load_model(*folder / "hf", mesh, layout, at::kCPU,
                                                    {.tokenizer = "bytes", .packing = nn::WeightPacking{}});
      infer::SchemaCache schemas(*saved.tokenizer, saved.end_ids);
      infer::Engine engine(*saved.model, kSmallCache);
      EngineLoop loop(part, mesh, {.engine = &engine, .schemas = &schemas, .end_ids = saved.end_ids});
      Rank rank{world, part, mesh, saved, engine, loop};
      work(rank);
    });
  }

  static inline std::unique_ptr<test::TemporaryFolder> folder;
  std::atomic<bool> breaks_second = false;
};
INSTANTIATE_TEST_SUITE_P(Ranks, ServedReplicasOf, testing::Values(1, 2));

/// The events of one generation. Events of different replicas arrive on different threads.
struct Heard {
  Tokens tokens;
  std::string error;
  std::atomic<int> events = 0;
  std::atomic<FinishReason> finish_reason = FinishReason::None;

  infer::OnEvent listener() {
    return [this](const Event& event) {
      if (event.is_answer()) tokens.push_back(event.token);
      error = event.error;
      ++events;
      finish_reason = event.finish_reason;
    };
  }
};

Generation generation_of(int64_t first, int64_t max_tokens) {
  return {.prompt = {first, first + 1, first + 2}, .options = {.max_tokens = max_tokens}, .ignores_end = true};
}

/// Returns a generation that goes on until it is ended.
Generation endless_generation(int64_t first) {
  Generation generation = generation_of(first, 1 << 30);
  generation.options.attention_sinks = 2;
  return generation;
}

std::optional<Ticket> add(Replica& replica, Heard& heard, Generation generation) {
  generation.on_event = heard.listener();
  std::vector<Generation> list;
  list.push_back(std::move(generation));
  return replica.add(std::move(list));
}

TEST_P(ServedReplicasOf, AnswerLikeOneEngine) {
  constexpr size_t kRequests = 12;
  std::atomic<int64_t> prompt_tokens[kReplicas] = {};
  on_ranks([&](Rank& rank) {
    std::vector<infer::Request> requests;
    for (size_t i = 0; i < kRequests; ++i) {
      const Generation generation = generation_of(40 + static_cast<int64_t>(i), 4 + static_cast<int64_t>(i));
      requests.push_back({.prompt = generation.prompt, .options = generation.options});
    }
    infer::Engine alone(*rank.saved.model, kSmallCache);
    const std::vector<Tokens> want = infer::engine_test::answers_of(alone, requests);
    ServedReplicas served(rank.part, rank.loop, 256);
    const int64_t before = rank.world.traffic().total("replicas").calls;
    std::vector<Heard> heard(kRequests);
    const bool is_first = rank.world.rank() == 0;
    for (size_t i = 0; is_first && i < kRequests; ++i)
      EXPECT_TRUE(add(served.replica(), heard[i], generation_of(requests[i].prompt[0], requests[i].options.max_tokens))
                      .has_value());
    served.run([&] {
      EXPECT_TRUE(is_first);
      const auto has_ended = [](const Heard& own) { return own.finish_reason != FinishReason::None; };
      if (std::all_of(heard.begin(), heard.end(), has_ended)) served.end();
    });
    EXPECT_EQ(rank.world.traffic().total("replicas").calls, before) << "no collective spans two replicas";
    if (rank.part.rank() == 0) prompt_tokens[rank.part.index()] = rank.engine.counts().prompt_tokens;
    for (size_t i = 0; is_first && i < kRequests; ++i) {
      EXPECT_EQ(heard[i].tokens, want[i]) << i;
      EXPECT_EQ(heard[i].finish_reason.load(), FinishReason::AtLength) << i;
    }
  });
  int64_t tokens = 0;
  for (const auto& own : prompt_tokens) {
    EXPECT_GT(own, 0) << "every replica has work";
    tokens += own;
  }
  EXPECT_EQ(tokens, 12 * 3);
}

TEST_P(ServedReplicasOf, CancelInEveryReplica) {
  on_ranks([&](Rank& rank) {
    ServedReplicas served(rank.part, rank.loop, 256);
    std::vector<Heard> heard(kReplicas);
    std::vector<Ticket> tickets;
    for (int k = 0; rank.world.rank() == 0 && k < kReplicas; ++k)
      tickets.push_back(add(served.replica(), heard[k], endless_generation(60 + 20 * k)).value_or(0));
    bool has_cancelled = false;
    served.run([&] {
      const auto runs = [](const Heard& own) { return own.events > 0; };
      if (!has_cancelled && std::all_of(heard.begin(), heard.end(), runs)) {
        for (const Ticket ticket : tickets) served.replica().cancel(ticket);
        has_cancelled = true;
      }
      const ReplicaLoad load = served.replica().load();
      if (has_cancelled && load.waiting + load.running == 0) served.end();
    });
    EXPECT_FALSE(rank.engine.has_work());
    for (const Heard& own : heard) EXPECT_EQ(own.finish_reason.load(), FinishReason::None);
  });
}

// The end leaves work unfinished in both replicas.
TEST_P(ServedReplicasOf, EndWithWorkUnderWay) {
  on_ranks([&](Rank& rank) {
    ServedReplicas served(rank.part, rank.loop, 256);
    std::vector<Heard> heard(kReplicas);
    for (int k = 0; rank.world.rank() == 0 && k < kReplicas; ++k)
      add(served.replica(), heard[k], endless_generation(60 + 20 * k));
    served.run([&] {
      if (heard[0].events > 0 && heard[1].events > 0) served.end();
    });
    for (const Heard& own : heard) EXPECT_EQ(own.finish_reason.load(), FinishReason::None);
  });
}

TEST_P(ServedReplicasOf, EndWithTheErrorOfAnotherReplica) {
  if (GetParam() == 1) GTEST_SKIP() << "the groups of one rank have no calls that could fail";
  on_ranks([&](Rank& rank) {
    ServedReplicas served(rank.part, rank.loop, 256);
    std::vector<Heard> heard(kReplicas);
    for (int k = 0; rank.world.rank() == 0 && k < kReplicas; ++k)
      add(served.replica(), heard[k], endless_generation(60 + 20 * k));
    const std::string message = test::thrown_message([&] {
      served.run([&] {
        if (heard[0].events > 0 && heard[1].events > 0) breaks_second = true;
      });
    });
    if (rank.world.rank() == 2) {
      EXPECT_EQ(message, "[comm] rank 3 has died");
    } else if (rank.world.rank() == 0) {
      EXPECT_EQ(message, "[serve] replica 1 (ranks 2 to 3) ended: [comm] rank 3 has died (rank 2 of 4)");
      for (const Heard& own : heard) {
        EXPECT_EQ(own.finish_reason.load(), FinishReason::EngineEnded);
        EXPECT_THAT(own.error, HasSubstr("rank 3 has died"));
      }
    }
  });
}

TEST_P(ServedReplicasOf, EndAllWithTheErrorOfRankZero) {
  on_ranks([&](Rank& rank) {
    ServedReplicas served(rank.part, rank.loop, 256);
    std::vector<Heard> heard(kReplicas);
    for (int k = 0; rank.world.rank() == 0 && k < kReplicas; ++k)
      add(served.replica(), heard[k], endless_generation(60 + 20 * k));
    const std::string message = test::thrown_message([&] {
      served.run([&] { require(heard[0].events == 0 || heard[1].events == 0, "cli", "the socket is gone"); });
    });
    if (rank.world.rank() == 0) {
      for (const Heard& own : heard) EXPECT_EQ(own.finish_reason.load(), FinishReason::EngineEnded);
    }
    if (rank.part.index() == 1 && rank.part.rank() == 0) {
      EXPECT_THAT(message, StartsWith("[serve] rank 0, which takes the requests, has ended: "));
    }
  });
}

TEST(CheckReplicas, RefusesOtherNumbersOfRanks) {
  const auto world = comm::make_simulated_world(0, 6);
  EXPECT_NO_THROW(check_replicas(*world, 3, 2));
  EXPECT_EQ(test::thrown_message([&] { check_replicas(*world, 0, 2); }),
            "[serve] --replicas must be at least 1: got 0");
  EXPECT_EQ(
      test::thrown_message([&] { check_replicas(*world, 2, 2); }),
      "[serve] the number of ranks must be --replicas times the ranks of the layout: got 6 ranks for 2 * 2; start "
      "4 ranks");
}

}  // namespace
}  // namespace colossal::serve::served_replicas_test
