// Clips that a tiny STDiT3 draws: what they depend on, in each layout, and frames that are given, to Open-Sora 2, too.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <mutex>
#include <set>

#include "colossal/base/seed.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/denoiser.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/sampler.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::clip_drawings_test {
namespace {

using distributed::ParallelConfig;
using tensor::Dim;
using testing::HasSubstr;

constexpr int64_t kFrames = 5, kHeight = 5, kWidth = 5;  // 9 places

at::Tensor random(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

/// Returns what `rows` clips are told, with pads; the captions of rows differ.
tensor::Batch told(int64_t rows, int64_t is_untold) {
  at::Tensor mask = at::ones({rows, 7}, at::kLong);
  mask.narrow(1, 4, 3).fill_(0);
  tensor::Batch batch;
  batch.add("text", {random({rows, 7, 12}, 1), {Dim::Row, Dim::Other, Dim::Feature}});
  batch.add("fps", {at::full({rows}, 8, at::kDouble), {Dim::Row}});
  batch.add("text_mask", {mask, {Dim::Row, Dim::Other}});
  batch.add("untold", {at::full({rows}, is_untold, at::kLong), {Dim::Row}});
  return batch;
}

Drawing clips(const std::vector<uint64_t>& seeds, double guidance = 2) {
  const auto rows = static_cast<int64_t>(seeds.size());
  return {.told = told(rows, 0),
          .untold = guidance == 1 ? tensor::Batch() : told(rows, 1),
          .seeds = seeds,
          .size = {kHeight, kWidth},
          .frames = kFrames,
          .guidance = guidance};
}

/// One whose first and last frame are given.
Drawing continued(const std::vector<uint64_t>& seeds) {
  Drawing drawing = clips(seeds);
  drawing.rescale = 0.7;
  drawing.given_frames = {0, kFrames - 1};
  drawing.given = random({static_cast<int64_t>(seeds.size()), 3, 2, kHeight, kWidth}, 3);
  return drawing;
}

struct Drawn {
  models::ModelShape shape = test::tiny_stdit();
  int64_t steps = 3;
  bool is_new = false;        // temporal branches are 0; otherwise weights are all random
  std::string zero = "none";  // weights with this in their names are 0
};

at::Tensor drawn(const Drawing& drawing, const ParallelConfig& layout, int guidance, const Drawn& how) {
  const noise::SamplerPlan plan = noise::plan_sampler(
      noise::NoiseLevels({}), {.sampler = "flow", .steps = how.steps, .target = noise::Target::Flow});
  at::Tensor result;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(layout.ranks()) * guidance, [&](comm::World& world) {
    comm::Mesh mesh(world, run::axes_with_guidance(layout, guidance)), own = mesh.without({run::kGuidanceAxis});
    distributed::DistributedModel model(own, layout, how.shape, {.dtype = at::kDouble}, {});
    for (const nn::Parameter& p : model.parameters()) {
      if (how.is_new || !p.value.defined()) continue;
      const double size = p.name.find(how.zero) == std::string::npos ? 0.2 : 0;
      const at::Tensor whole = random(p.spec.shape, derive_seed(7, p.name)) * size;
      p.value.detach().copy_(test::local_part(whole, p.spec, own.coordinates()));
    }
    Drawing shared = drawing;
    shared.halves = &mesh.group(run::kGuidanceAxis);
    const at::Tensor clip = draw(model, plan, shared);
    const std::lock_guard lock(mutex);
    if (world.rank() + 1 == world.size()) result = clip;
  });
  return result;
}

at::Tensor drawn(const Drawing& drawing, const ParallelConfig& layout = {}, int guidance = 1, bool is_new = false) {
  return drawn(drawing, layout, guidance, Drawn{.is_new = is_new});
}

/// A clip of Open-Sora 2 whose first and last frame are given.
Drawing of_open_sora() {
  Drawing drawing = continued({1, 2});
  const models::DenoiserSizes sizes = models::denoiser_of(test::tiny_open_sora());
  for (tensor::Batch* told : {&drawing.told, &drawing.untold}) {
    const uint64_t seed = told == &drawing.told ? 1 : 2;
    *told = {};
    told->add("text", {random({2, 5, sizes.text}, seed), {Dim::Row, Dim::Other, Dim::Feature}});
    told->add("pooled", {random({2, sizes.pooled}, seed + 2), {Dim::Row, Dim::Other}});
  }
  drawing.given = random({2, sizes.channels, 2, kHeight, kWidth}, 3);
  return drawing;
}

double apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(ClipDrawings, DependOnTheirSeedAndCaptionAlone) {
  Drawing both = clips({1, 2}), second = clips({2});
  second.told = both.told.part(1, 1), second.untold = both.untold.part(1, 1);
  const at::Tensor two = drawn(both), alone = drawn(second);
  ASSERT_EQ(two.sizes(), at::IntArrayRef({2, 3, kFrames, kHeight, kWidth}));
  EXPECT_LT(apart(two[1], alone[0]), 1e-10);
  EXPECT_GT(apart(two[0], two[1]), 1e-2);
  second.untold = second.told;  // a negative caption in place of the null text
  EXPECT_GT(apart(drawn(second), alone), 1e-3);
}

TEST(ClipDrawings, EqualThoseOfOneProcessInEveryLayout) {
  const Drawing drawing = continued({1, 2});
  const at::Tensor want = drawn(drawing);
  ParallelConfig pipeline;
  pipeline.pipeline.size = 2;
  for (const auto& [name, layout, guidance] : std::vector<std::tuple<const char*, ParallelConfig, int>>{
           {"dsp", {.sequence = {2, "dsp"}}, 1},
           {"dsp and guidance", {.sequence = {2, "dsp"}}, 2},
           {"dsp of 4, whose frames do not divide", {.sequence = {4, "dsp"}}, 1},
           {"ulysses", {.sequence = {2, "ulysses"}}, 1},
           {"tensor", {.tensor = {.size = 2}}, 1},
           {"data and ZeRO", {.data = 2, .zero = 3}, 1},
           {"pipeline", pipeline, 1}})
    EXPECT_LT(apart(drawn(drawing, layout, guidance), want), 1e-10) << name;
}

TEST(ClipDrawings, KeepGivenFramesWhichOthersFollow) {
  const Drawing drawing = continued({1, 2});
  const at::Tensor clip = drawn(drawing);
  EXPECT_TRUE(clip.select(2, 0).equal(drawing.given.select(2, 0)));
  EXPECT_TRUE(clip.select(2, kFrames - 1).equal(drawing.given.select(2, 1)));
  Drawing other = drawing;
  other.given = drawing.given.clone();
  other.given.select(2, 1).fill_(0.5);
  const at::Tensor changed = drawn(other);
  for (int64_t frame = 1; frame + 1 < kFrames; ++frame)
    EXPECT_GT(apart(changed.select(2, frame), clip.select(2, frame)), 1e-4) << frame;
}

// Open-Sora 2 reads given frames in a field of their own, and noised like the others.
TEST(ClipDrawings, ShowGivenFramesToOpenSora) {
  const Drawing drawing = of_open_sora();
  const Drawn open_sora{.shape = test::tiny_open_sora()};
  const at::Tensor clip = drawn(drawing, {}, 1, open_sora);
  EXPECT_TRUE(clip.select(2, 0).equal(drawing.given.select(2, 0)));
  EXPECT_TRUE(clip.select(2, kFrames - 1).equal(drawing.given.select(2, 1)));
  EXPECT_LT(apart(drawn(drawing, {.sequence = {2, "ulysses"}}, 2, open_sora), clip), 1e-10);
  Drawing other = drawing;
  other.given = drawing.given.flip({2});
  const auto of_middle = [](const at::Tensor& x) { return x.narrow(2, 1, kFrames - 2); };
  EXPECT_GT(apart(of_middle(drawn(other, {}, 1, open_sora)), of_middle(clip)), 1e-4);
  // The first step begins from noise alone, so without the layer that reads `shown` given frames change nothing there.
  const Drawn blind{.shape = open_sora.shape, .steps = 1, .zero = "given"};
  Drawing free = drawing;
  free.rescale = other.rescale = 0;  // which leaves given frames out
  free.given = at::Tensor();
  free.given_frames.clear();
  EXPECT_LT(apart(of_middle(drawn(other, {}, 1, blind)), of_middle(drawn(free, {}, 1, blind))), 1e-12);
}

// Before it is trained the model draws frames without one another, and a picture as a clip of one frame.
TEST(ClipDrawings, EqualPicturesOfTheirFramesBeforeTraining) {
  Drawing all = clips({1});
  all.start = random({1, 3, kFrames, kHeight, kWidth}, 5);
  const at::Tensor clip = drawn(all, {}, 1, /*is_new=*/true);
  for (int64_t frame = 0; frame < kFrames; ++frame) {
    Drawing one = clips({1});
    one.frames = 1;
    one.start = all.start.narrow(2, frame, 1);
    EXPECT_LT(apart(drawn(one, {}, 1, /*is_new=*/true), clip.narrow(2, frame, 1)), 1e-12) << frame;
  }
}

TEST(ClipDrawings, RefuseFramesThatCannotBeGiven) {
  const auto refused = [](const std::vector<int64_t>& frames, int64_t values) {
    Drawing drawing = clips({1}, 1);
    drawing.given_frames = frames;
    drawing.given = at::zeros({1, 3, values, kHeight, kWidth}, at::kDouble);
    return test::thrown_message([&] { drawn(drawing); });
  };
  EXPECT_THAT(refused({kFrames}, 1), HasSubstr("different ones of the 5 frames"));
  EXPECT_THAT(refused({1, 1}, 2), HasSubstr("got 1, 1"));
  EXPECT_THAT(refused({0, 1, 2, 3, 4}, 5), HasSubstr("leave one to draw"));
  EXPECT_THAT(refused({0}, 2), HasSubstr("must have the sizes [1, 3, 1, 5, 5]"));
  Drawing drawing = clips({1}, 1);
  drawing.told = drawing.told.without("fps");
  EXPECT_THAT(test::thrown_message([&] { drawn(drawing); }), HasSubstr("the field `fps`"));
}

TEST(ClipDrawings, RefuseFewerFramesThanRanks) {
  Drawing drawing = clips({1}, 1);
  drawing.frames = 1;
  EXPECT_THAT(test::thrown_message([&] { drawn(drawing, {.sequence = {2, "dsp"}}); }),
              testing::AllOf(HasSubstr("each of the 2 ranks"), HasSubstr("got 1 frames")));
}

}  // namespace
}  // namespace colossal::diffusion::clip_drawings_test
