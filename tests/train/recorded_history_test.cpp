// The records that a run keeps for its report: its starts, its samples, and measurements of each rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/version.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/recorded_run.h"
#include "train/whole_runs.h"

namespace colossal::train::recorded_history_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;

std::vector<int64_t> sampled(const report::RecordedRun& run) {
  std::vector<int64_t> steps;
  for (const report::SampleRecord& sample : run.samples) steps.push_back(sample.step);
  return steps;
}

std::vector<std::string> kinds(const report::RecordedRun& run) {
  std::vector<std::string> out;
  for (const report::StartRecord& start : run.starts) out.push_back(start.kind);
  return out;
}

TEST_F(Run, RecordsEachStartAndRank) {
  const run::Config c = make("run", 2, 1);
  train(c, Start::New, 12);
  train(c, Start::Resume);
  const report::RecordedRun run = report::read_run(c.run.folder);
  EXPECT_THAT(run.missing, IsEmpty());
  EXPECT_THAT(kinds(run), ElementsAre("new", "resume"));
  EXPECT_EQ(run.starts[1].after, 12);
  EXPECT_EQ(run.starts[1].version, version());
  EXPECT_EQ(run.starts[1].revision, revision());
  EXPECT_GT(run.starts[0].time, 1.7e9);
  int data = 0;
  for (const report::MeshAxis& axis : run.starts[0].mesh)
    if (axis.name == "data") data = axis.size;
  EXPECT_EQ(data, 2);
  EXPECT_THAT(sampled(run), ElementsAre(12, 20));
  ASSERT_EQ(run.ranks.size(), 20u);
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    EXPECT_EQ(run.ranks[i].step, static_cast<int64_t>(i) + 1);
    EXPECT_THAT(run.ranks[i].seconds, ElementsAre(Gt(0.0), Gt(0.0)));
    ASSERT_EQ(run.ranks[i].peak_bytes.size(), 2u);
    EXPECT_EQ(std::max(run.ranks[i].peak_bytes[0], run.ranks[i].peak_bytes[1]), run.steps.value("peak_bytes", i));
  }
}

TEST_F(Run, SamplesWhileItTrains) {
  run::Config c = make("run", 1, 1);
  c.training.sample_every = 6;
  comm::run_ranks(1, [&](comm::World& world) {
    TrainerOptions options{.builtin_data = base + "/sources"};
    options.program.objectives.at("next-token").samples = [](Trainer& trainer, const run::ShowText&) {
      const int64_t steps = trainer.engine().steps_done();
      std::vector<run::Sample> samples{{.title = "prompt", .text = steps == 12 ? "" : concat("after ", steps)}};
      if (steps == 18)
        samples.push_back(run::picture_sample("a pixel", "pixel", {.width = 1, .height = 1, .rgb = {255, 0, 0}}));
      if (steps == 18) samples.push_back({.title = "numbers", .file = "numbers.csv", .bytes = "1,2\n"});
      return samples;
    };
    Trainer trainer(world, c, options);
    EXPECT_TRUE(trainer.run());
    trainer.write_report({{.text = "end"}});
  });
  const report::RecordedRun run = report::read_run(c.run.folder);
  EXPECT_THAT(sampled(run), ElementsAre(6, 18, 18, 18, 20));
  EXPECT_EQ(run.samples[1].text, "after 18");
  EXPECT_EQ(run.samples[2].file, "samples/step-000018-pixel.png");
  EXPECT_EQ(run.samples[3].file, "samples/step-000018-numbers.csv");
  EXPECT_EQ(run.samples[4].text, "end");
  const data::Picture pixel = data::decode_picture(test::read_all(c.run.folder + "/" + run.samples[2].file), "pixel");
  EXPECT_THAT(pixel.rgb, ElementsAre(255, 0, 0));
  EXPECT_EQ(test::read_all(c.run.folder + "/" + run.samples[3].file), "1,2\n");
  const std::string page = test::read_all(c.run.folder + "/report.html");
  EXPECT_THAT(page, testing::HasSubstr("<figure class='sample'><img alt='samples/step-000018-pixel.png' "
                                       "src='data:image/png;base64,iVBORw0KGgo"));
  EXPECT_THAT(page, testing::HasSubstr("<a href='samples/step-000018-numbers.csv'>"));
}

TEST_F(Run, KeepsRecordsOfAnOverwrittenRunUntilACheckpoint) {
  const run::Config c = make("run", 1, 1);
  train(c, Start::New);
  train_and_die(c, Start::Overwrite, 3);
  EXPECT_THAT(kinds(report::read_run(c.run.folder)), ElementsAre("overwrite"));
  train(c, Start::Resume);
  const report::RecordedRun run = report::read_run(c.run.folder);
  EXPECT_THAT(kinds(run), ElementsAre("new", "resume"));
  EXPECT_EQ(run.ranks.size(), 20u);
}

}  // namespace
}  // namespace colossal::train::recorded_history_test
