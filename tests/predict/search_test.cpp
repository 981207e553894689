// The search finds the fastest of all layouts that fit, keeps what it is told to keep, and says why there is none.
#include "colossal/predict/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/predict/layouts.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/step.h"
#include "colossal/run/data.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/program.h"
#include "colossal/train/memory_needs.h"
#include "predict/small_runs.h"
#include "support/thrown_message.h"

namespace colossal::predict::search_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Axes that differ little from one another are kept, so that every layout can be recorded in seconds.
const std::vector<std::string> kKept{"memory.recompute", "parallel.pipeline.schedule", "parallel.pipeline.chunks",
                                     "parallel.pipeline.micro_batches", "training.accumulate"};

/// Records every legal layout. Returns the predictions of those that are legal for the model, too.
std::vector<plan::Prediction> all_predictions(const LayoutSpace& space, const models::ModelShape& shape,
                                              const plan::Cluster& cluster) {
  std::vector<plan::Prediction> all;
  space.for_each([&](const Layout& layout) {
    const run::Config config = space.config_of(layout);
    try {
      config.validate();
      all.push_back(predict_step({config, shape}, record_stages({config, shape}), cluster));
    } catch (const Error&) {
      return;
    }
  });
  return all;
}

struct SmallSpace {
  std::string name;
  models::ModelShape shape;
  run::Config config;
  int64_t ranks = 2;
  std::vector<std::string> keep = kKept;
};

std::vector<SmallSpace> small_spaces() {
  const auto keeping = [](std::vector<std::string> more) {
    more.insert(more.end(), kKept.begin(), kKept.end());
    return more;
  };
  std::vector<SmallSpace> spaces{{.name = "two ranks", .shape = small_shape(), .config = small_config()},
                                 {.name = "four ranks",
                                  .shape = small_shape(),
                                  .config = small_config(),
                                  .ranks = 4,
                                  .keep = keeping({"parallel.zero"})},  // there are four times as many layouts with it
                                 {.name = "deep",
                                  .shape = small_shape(),
                                  .config = small_config(),
                                  .keep = {"parallel.pipeline.schedule", "parallel.pipeline.chunks", "parallel.zero"}},
                                 {.name = "bf16, three", .shape = small_shape(), .config = small_config(), .ranks = 3},
                                 {.name = "large batch",
                                  .shape = small_shape(),
                                  .config = small_config(),
                                  .keep = {"parallel.pipeline", "parallel.sequence"}}};
  spaces[2].shape.layers = 12;
  spaces[3].config.precision.mode = "bf16";
  spaces[3].config.training.batch_size = 6;
  spaces[4].config.training.batch_size = 32;
  return spaces;
}

/// Five spaces with ample memory, and with a limit that only the smaller half of the layouts meets: ten runs.
TEST(Search, FindsTheFastestOfAllLayouts) {
  for (const SmallSpace& c : small_spaces()) {
    const plan::Cluster ample(small_cluster(kAmple));
    const LayoutSpace space({c.config, {.shape = c.shape}}, {.ranks = c.ranks, .ranks_per_node = 4, .keep = c.keep});
    const auto all = all_predictions(space, c.shape, ample);
    ASSERT_GT(all.size(), 5u) << c.name;
    std::vector<int64_t> peaks;
    for (const plan::Prediction& prediction : all) peaks.push_back(prediction.peak_bytes);
    std::sort(peaks.begin(), peaks.end());
    for (const int64_t memory : {kAmple, peaks[peaks.size() / 2]}) {
      double fastest = 0;
      for (const plan::Prediction& prediction : all)
        if (prediction.peak_bytes <= memory && (fastest == 0 || prediction.step_seconds < fastest))
          fastest = prediction.step_seconds;
      const plan::Cluster cluster(small_cluster(memory));
      const SearchResult found =
          search({c.config, c.shape}, cluster, {.ranks = c.ranks, .keep = c.keep, .seconds = 1000});
      ASSERT_THAT(found.best, Not(IsEmpty()));
      // A cut of stages by seconds may beat the layouts above; the bound is that of the issue, 1.05 of the best.
      EXPECT_LE(found.best.front().prediction.step_seconds, 1.05 * fastest) << c.name << ", " << memory;
      EXPECT_LE(found.best.front().prediction.peak_bytes, memory) << c.name;
    }
  }
}

/// 70 billion parameters on 16 GPUs, of which the layout that a person would choose leaves a tenth free.
TEST(Search, FindsAFastLayoutOfADeepModel) {
  run::Config config =
      run::read_given_config("", {"--model.name=llama3-70b", "--model.vocabulary=128256", "--precision.mode=bf16",
                                  "--run.device=cuda", "--data.sequence=4096", "--training.batch_size=16"})
          .config;
  const train::NamedModel model{.shape = run::resolve_model(config, run::built_in()).shape};
  const plan::Cluster cluster(plan::find_profile("h100-8x"));
  // Sizes and tensor.sequence of mode 1d, ZeRO and recomputation are searched; the rest would take a minute.
  const std::vector<std::string> keep{"parallel.pipeline", "parallel.sequence", "parallel.tensor.mode",
                                      "training.accumulate"};
  const SearchResult found =
      search({config, model}, cluster, {.ranks = 16, .keep = keep, .results = 1, .seconds = 1000, .records = 60});
  config.parallel.data = 2;
  config.parallel.zero = 3;
  config.parallel.tensor = {.size = 8, .sequence = true};
  config.memory.recompute = "block";
  const plan::Prediction by_hand = predict_step({config, model}, record_stages({config, model}, cluster), cluster);
  EXPECT_TRUE(by_hand.fits);
  EXPECT_TRUE(found.best.front().prediction.fits);
  EXPECT_LE(found.best.front().prediction.step_seconds, 1.05 * by_hand.step_seconds) << found.best.front().table;
  EXPECT_GT(found.shallow, 0);
}

TEST(Search, OrdersLayoutsAndExplainsThem) {
  const models::ModelShape shape = small_shape();
  const SearchResult found = search({small_config(), shape}, plan::Cluster(small_cluster(kAmple)), {.ranks = 2});
  ASSERT_GT(found.best.size(), 1u);
  EXPECT_LE(found.best.size(), 10u);
  EXPECT_GE(found.tried, found.recorded);
  for (size_t i = 1; i < found.best.size(); ++i)
    EXPECT_LE(found.best[i - 1].prediction.step_seconds, found.best[i].prediction.step_seconds);
  for (const FoundLayout& layout : found.best) {
    EXPECT_THAT(layout.why, HasSubstr("data = 2"));
    run::Config read = small_config();
    ConfigDocument::parse(layout.table, "table").read(read);
    EXPECT_EQ(to_toml(read), to_toml(layout.config)) << layout.table;
    EXPECT_EQ(layout.config.parallel.ranks(), 2);
    EXPECT_EQ(layout.config.training.batch_size, 4);
    if (layout.config.parallel.pipeline.size > 1) {
      EXPECT_THAT(layout.config.parallel.pipeline.layers_per_stage, Not(IsEmpty())) << layout.table;
    }
  }
}

// Modes that gather blocks refuse dropout of adapters.
TEST(Search, FindsLayoutsForAdapters) {
  const models::ModelShape shape = small_shape();
  const run::LowRankKeys keys{.kind = "lora", .rank = 4, .dropout = 0.1};
  const train::NamedModel adapted{.shape = shape, .adapter = run::low_rank_adapter(keys, shape)};
  const plan::Cluster cluster(small_cluster(kAmple));
  const SearchOptions options{.ranks = 4, .keep = {"memory.recompute"}, .records = 20};
  const SearchResult found = search({small_config(), adapted}, cluster, options),
                     whole = search({small_config(), shape}, cluster, options);
  ASSERT_FALSE(found.best.empty());
  for (const FoundLayout& layout : found.best) {
    const parallel::TensorConfig& tensor = layout.config.parallel.tensor;
    EXPECT_TRUE(tensor.size == 1 || (tensor.mode == "1d" && !tensor.sequence)) << layout.table;
    ASSERT_EQ(layout.prediction.models.size(), 1u);
    const plan::PredictedModel& model = layout.prediction.models[0];
    EXPECT_GT(model.trained, 0);
    EXPECT_LT(model.trained, model.parameters / 10);
    EXPECT_EQ(model.needs.front().what, train::kFrozenParameters);
  }
  EXPECT_LT(found.best.front().prediction.step_seconds, whole.best.front().prediction.step_seconds)
      << "few gradients are reduced";
}

TEST(Search, GivesTheSameResultAgain) {
  const models::ModelShape shape = small_shape();
  const plan::Cluster cluster(small_cluster(kAmple));
  std::vector<int64_t> progress;
  const SearchOptions options{.ranks = 4, .keep = kKept, .records = 12, .progress = [&](int64_t simulated, double) {
                                progress.push_back(simulated);
                              }};
  const SearchResult first = search({small_config(), shape}, cluster, options),
                     second = search({small_config(), shape}, cluster, options);
  ASSERT_EQ(first.best.size(), second.best.size());
  for (size_t i = 0; i < first.best.size(); ++i) EXPECT_EQ(first.best[i].table, second.best[i].table);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), second.recorded + second.shallow);
}

TEST(Search, ListsATieOnce) {
  models::ModelShape shape = small_shape();
  shape.layers = 4;
  run::Config config = small_config();
  config.parallel.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 1};
  const SearchOptions options{.ranks = 2,
                              .keep = {"parallel.pipeline.size", "parallel.pipeline.micro_batches", "memory.recompute"},
                              .seconds = 1000};
  const SearchResult found = search({config, shape}, plan::Cluster(small_cluster(kAmple)), options);
  ASSERT_GT(found.recorded, static_cast<int64_t>(found.best.size())) << "some layouts must tie, or nothing is tested";
  std::set<std::string> seen;
  for (const FoundLayout& layout : found.best) {
    run::Config renamed = layout.config;
    renamed.parallel.pipeline.schedule = "1f1b";
    renamed.parallel.pipeline.chunks = 0;
    EXPECT_TRUE(seen.insert(concat(to_toml(renamed), layout.prediction.step_seconds)).second) << layout.table;
    EXPECT_NE(layout.config.parallel.pipeline.schedule, "v-half") << "zero-bubble-v does the same and is simpler";
  }
}

TEST(Search, KeepsKeys) {
  run::Config config = small_config();
  config.parallel.tensor.size = 2;
  config.parallel.data = 7;  // ignored
  const SearchResult found = search({config, small_shape()}, plan::Cluster(small_cluster(kAmple)),
                                    {.ranks = 4, .keep = {"parallel.tensor", "memory.recompute"}});
  for (const FoundLayout& layout : found.best) {
    EXPECT_EQ(layout.config.parallel.tensor.size, 2);
    EXPECT_EQ(layout.config.parallel.tensor.mode, "1d");
    EXPECT_EQ(layout.config.memory.recompute, "none");
    EXPECT_EQ(layout.config.parallel.ranks(), 4);
  }
}

TEST(Search, SaysWhatTheSmallestLayoutNeeds) {
  try {
    search({small_config(), small_shape()}, plan::Cluster(small_cluster(1 << 10)), {.ranks = 2, .keep = kKept});
    FAIL() << "a model in 1 KiB";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[plan] no layout of 2 ranks fits: the smallest of "));
    EXPECT_THAT(error.what(), HasSubstr(" on a rank, and there are 1"));
  }
}

/// Parameters and states fit and the activations do not, so no bound proves anything before all layouts are simulated.
TEST(Search, SaysThatNothingFitsOnlyIfThatIsKnown) {
  run::Config config = small_config();
  config.parallel.data = 2;
  const models::ModelShape shape = small_shape();
  const int64_t needed =
      predict_step({config, shape}, record_stages({config, shape}), plan::Cluster(small_cluster(kAmple))).peak_bytes;
  const auto message = [&](const SearchOptions& options) {
    return test::thrown_message([&] { search({config, shape}, plan::Cluster(small_cluster(needed - 1)), options); });
  };
  const std::vector<std::string> keep{"parallel.data", "parallel.zero", "training.accumulate"};
  std::vector<std::string> all = keep;
  all.emplace_back("memory.recompute");
  EXPECT_THAT(message({.ranks = 2, .keep = all}),
              HasSubstr("[plan] no layout of 2 ranks fits: the smallest of 1 needs "));
  EXPECT_THAT(message({.ranks = 2, .keep = keep, .records = 1}),
              HasSubstr("[plan] none of 1 layouts of 2 ranks that were tried fits, of 3 legal ones: the smallest "));
}

TEST(Search, SaysWhyEachAxisIsLeftOut) {
  // 5 does not divide the batch, the heads or the tokens, and the model has two blocks.
  try {
    search({small_config(), small_shape()}, plan::Cluster(small_cluster(kAmple)),
           {.ranks = 5, .keep = {"parallel.sequence"}});
    FAIL() << "five ranks";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no layout of 5 ranks is legal"));
    EXPECT_THAT(error.what(), HasSubstr("data: training.batch_size must divide by the replicas: got 4 samples for 5"));
    EXPECT_THAT(error.what(), HasSubstr("tensor: "));
    EXPECT_THAT(error.what(), HasSubstr("pipeline: "));
  }
}

TEST(Remedies, MakeARunFit) {
  const models::ModelShape shape = small_shape();
  run::Config config = small_config();
  config.parallel.data = 2;
  config.training.batch_size = 16;
  const auto predict = [&](const run::Config& c) {
    return predict_step({c, shape}, record_stages({c, shape}), plan::Cluster(small_cluster(kAmple)));
  };
  const int64_t needed = predict(config).peak_bytes;
  const plan::Cluster cluster(small_cluster(needed - 1));
  const auto found = remedies({config, {.shape = shape}}, cluster);
  ASSERT_THAT(found, Not(IsEmpty()));
  for (size_t i = 0; i < found.size(); ++i) {
    run::Config changed = config;
    ConfigDocument::parse(found[i].table, "table").read(changed);
    changed.validate();
    const plan::Prediction prediction = predict_step({changed, shape}, record_stages({changed, shape}), cluster);
    EXPECT_TRUE(prediction.fits) << found[i].table;
    EXPECT_EQ(prediction.peak_bytes, found[i].peak_bytes) << found[i].table;
    EXPECT_EQ(prediction.step_seconds, found[i].step_seconds) << found[i].table;
    if (i > 0) {
      EXPECT_LE(found[i - 1].step_seconds, found[i].step_seconds);
    }
  }
}

}  // namespace
}  // namespace colossal::predict::search_test
