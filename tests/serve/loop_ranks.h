// A loop on several ranks of a tiny model, and callers that keep what they hear.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/run/saved_model.h"
#include "colossal/serve/engine_loop.h"
#include "infer/engine_answers.h"
#include "support/generated_text.h"

namespace colossal::serve::loop_ranks {

using infer::Event;
using infer::FinishReason;
using infer::engine_test::Tokens;

inline const infer::EngineOptions kSmall{.cache_bytes = 1 << 20, .block_tokens = 16};
inline const std::vector<std::vector<int64_t>> kTexts{{5, 6, 7}, {8}, {9, 10, 11, 12, 13}, {5, 6, 7}};

/// One rank with a model.
struct Rank {
  comm::World& world;
  comm::Mesh& mesh;
  const run::SavedModel& saved;
  infer::SchemaCache& schemas;

  EngineLoopOptions options(infer::Engine& engine) const {
    return {.engine = &engine, .schemas = &schemas, .end_ids = saved.end_ids};
  }
  bool is_first() const { return world.rank() == 0; }
};

/// Runs tests on as many ranks as the parameter says, which share each matrix.
class LoopRanks : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<test::TemporaryFolder>();
    test::write_model(*folder, "llama-tiny");
  }
  static void TearDownTestSuite() { folder.reset(); }

  void on_ranks(const std::function<void(Rank&)>& work) {
    distributed::ParallelConfig layout;
    layout.tensor.size = GetParam();
    comm::run_ranks(GetParam(), [&](comm::World& world) {
      comm::Mesh mesh(world, layout.axes());
      const run::SavedModel saved = run::load_model(*folder / "hf", mesh, layout, at::kCPU,
                                                    {.tokenizer = "bytes", .packing = nn::WeightPacking{}});
      infer::SchemaCache schemas(*saved.tokenizer, saved.end_ids);
      Rank rank{world, mesh, saved, schemas};
      work(rank);
    });
  }

  static inline std::unique_ptr<test::TemporaryFolder> folder;
};

/// The events of one generation, as its caller hears them.
struct Heard {
  Tokens tokens;
  FinishReason finish_reason = FinishReason::None;
  std::string error;
  int64_t found = 0;

  infer::OnEvent listener() {
    return [this](const Event& event) {
      EXPECT_EQ(finish_reason, FinishReason::None) << "no event follows the last one";
      if (event.is_answer()) tokens.push_back(event.token);
      finish_reason = event.finish_reason, error = event.error, found = event.found;
    };
  }
  bool has_ended() const { return finish_reason != FinishReason::None; }
};

inline Generation generation_of(int64_t first, int64_t max_tokens) {
  return {.prompt = {first, first + 1, first + 2}, .options = {.max_tokens = max_tokens}, .ignores_end = true};
}

inline Generation heard_by(Heard& heard, Generation generation) {
  generation.on_event = heard.listener();
  return generation;
}

inline std::vector<Generation> one(Generation generation) {
  std::vector<Generation> list;
  list.push_back(std::move(generation));
  return list;
}

/// Returns the tokens that an engine of its own generates.
inline Tokens want_of(const Rank& rank, const Generation& generation) {
  infer::Engine engine(*rank.saved.model, kSmall);
  return infer::engine_test::answers_of(engine,
                                        {{.prompt = generation.prompt,
                                          .options = generation.options,
                                          .constraint = rank.schemas.constraint(generation.options.json_schema)}})
      .at(0);
}

}  // namespace colossal::serve::loop_ranks
