// The clip that a run over clips shows of its model.
#include "colossal/diffusion/sample_clip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/file.h"
#include "colossal/data/videos/video.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "support/clip_run.h"
#include "support/temporary_folder.h"

namespace colossal::diffusion::sample_clip_test {
namespace {

TEST(SampleClip, MakesAGifOnTheFirstRank) {
  const test::TemporaryFolder folder;
  const run::Config config = test::clip_run_config(folder / "run", {"--parallel.data=2", "--training.batch_size=2"});
  const run::ResolvedModel model = run::resolve_model(config, run::built_in());
  const run::PipelineSource source =
      dynamic_cast<const run::DiffusionObjective&>(*model.objective.objective).pipeline();
  comm::run_ranks(2, [&](comm::World& world) {
    const auto engine = train::initialize(world, config, train::models_of(config, model));
    PipelineParts parts(source, world, at::kCPU, {}, run::built_in());
    const auto drawn = [&](uint64_t seed, int64_t frames = 0) {
      return sample_clip(*engine, source, parts,
                         {.prompt = "a red circle", .seed = seed, .steps = 2, .frames = frames});
    };
    const run::Sample sample = drawn(1), other = drawn(2), longer = drawn(1, 5);
    EXPECT_EQ(sample.title, "a red circle");
    EXPECT_EQ(sample.file, "prompt-1.gif");
    EXPECT_EQ(sample.bytes.empty(), world.rank() > 0);
    if (world.rank() > 0) return;
    EXPECT_NE(sample.bytes, other.bytes);
    for (const auto& [bytes, length] : {std::pair{sample.bytes, 3}, {longer.bytes, 5}}) {
      const auto file = InputFile::open(folder.write("sample.gif", bytes));
      const auto video = data::open_video(data::bytes_of(*file), "sample.gif");
      int64_t frames = 0;
      while (video->next()) ++frames;
      EXPECT_EQ(frames, length);
      EXPECT_EQ(video->size().width, 12);
    }
    EXPECT_THROW(sample_clip(*engine, source, parts, {.prompt = "x", .stops = [] { return true; }}), StoppedDrawing);
  });
}

}  // namespace
}  // namespace colossal::diffusion::sample_clip_test
