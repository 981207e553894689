// Clips of an STDiT3 that are drawn exactly and with attention that steps reuse: which steps compute, what is equal,
// and what ranks send.
#include "colossal/diffusion/attention_broadcast.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>

#include "colossal/base/seed.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/registry.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/sampler.h"
#include "colossal/tensor/flops.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::attention_broadcast_test {
namespace {

using distributed::ParallelConfig;
using nn::AttentionKind;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kSteps = 20;
const AttentionBroadcast kNone{.space = 1, .time = 1, .caption = 1};

std::vector<int64_t> computed_steps(const AttentionBroadcast& broadcast, AttentionKind kind) {
  std::vector<int64_t> steps;
  for (int64_t step = 0; step < kSteps; ++step)
    if (!broadcast.reuses(kind, step, kSteps)) steps.push_back(step);
  return steps;
}

// The range is that of steps 3 to 16 of 20.
TEST(AttentionBroadcast, ComputesEverySecondFourthAndSixthStepOfTheRange) {
  const AttentionBroadcast pab;
  EXPECT_THAT(computed_steps(pab, AttentionKind::Space), ElementsAre(0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 18, 19));
  EXPECT_THAT(computed_steps(pab, AttentionKind::Time), ElementsAre(0, 1, 2, 3, 7, 11, 15, 17, 18, 19));
  EXPECT_THAT(computed_steps(pab, AttentionKind::Caption), ElementsAre(0, 1, 2, 3, 9, 15, 17, 18, 19));
  EXPECT_EQ(computed_steps(kNone, AttentionKind::Space).size(), size_t{kSteps});
  EXPECT_FALSE(pab.reuses(AttentionKind::Caption, 0, 1)) << "the only step";
}

TEST(AttentionBroadcast, KeepsOutputsAsLongAsStepsReuseThem) {
  const AttentionBroadcast pab;
  for (int64_t step = 0; step < kSteps; ++step) {
    const nn::AttentionUse time = pab.uses(step, kSteps).time;
    const bool keeps = step == 3 || step == 7 || step == 11 || step == 15;
    EXPECT_EQ(time == nn::AttentionUse::Kept, keeps) << step;
    EXPECT_EQ(time == nn::AttentionUse::Reused, pab.reuses(AttentionKind::Time, step, kSteps)) << step;
  }
}

TEST(AttentionReuse, TakesOutputsOfTheSameLayerAndKind) {
  nn::AttentionReuse reuse;
  const int first = 0, second = 0;
  const auto value = [&](AttentionKind kind, const int& layer, double computed) {
    return reuse.output(kind, &layer, [&] { return at::full({1}, computed); }).item<double>();
  };
  EXPECT_THAT(test::thrown_message([&] {
                reuse.begin_pass({.space = nn::AttentionUse::Reused});
                value(AttentionKind::Space, first, 1);
              }),
              HasSubstr("must be kept before it is reused"));
  reuse.begin_pass({.space = nn::AttentionUse::Kept, .time = nn::AttentionUse::Kept});
  value(AttentionKind::Space, first, 1), value(AttentionKind::Space, second, 2), value(AttentionKind::Time, first, 3);
  reuse.begin_pass({.space = nn::AttentionUse::Reused, .time = nn::AttentionUse::Reused});
  EXPECT_EQ(value(AttentionKind::Space, first, 10), 1);
  EXPECT_EQ(value(AttentionKind::Space, second, 10), 2);
  EXPECT_EQ(value(AttentionKind::Time, first, 10), 3);
  EXPECT_EQ(value(AttentionKind::Caption, first, 10), 10);
  EXPECT_EQ(reuse.computed(AttentionKind::Space), 2);
  reuse.begin_pass({});
  EXPECT_EQ(value(AttentionKind::Space, first, 20), 20);
  reuse.begin_pass({.space = nn::AttentionUse::Reused});
  EXPECT_NE(test::thrown_message([&] { value(AttentionKind::Space, first, 1); }), "") << "freed";
}

at::Tensor random(const std::vector<int64_t>& sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

/// Returns the fields that a model of clips reads of a caption, with one pad of five tokens.
tensor::Batch told(bool has_caption) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("text", {random({1, 5, 12}, 1), {Dim::Row, Dim::Other, Dim::Feature}});
  batch.add("fps", {at::full({1}, 8, at::kDouble), {Dim::Row}});
  batch.add("text_mask", {at::tensor({1, 1, 1, 1, 0}, at::kLong).view({1, 5}), {Dim::Row, Dim::Other}});
  batch.add("untold", {at::full({1}, has_caption ? 0 : 1, at::kLong), {Dim::Row}});
  return batch;
}

Drawing clip(const std::optional<AttentionBroadcast>& broadcast) {
  return {.told = told(true), .untold = told(false), .seeds = {3}, .guidance = 2, .broadcast = broadcast};
}

/// Replaces all weights, because those of temporal branches begin as 0.
void set_random_weights(distributed::DistributedModel& model, const comm::Mesh& mesh) {
  for (const nn::Parameter& p : model.parameters()) {
    if (!p.value.defined()) continue;
    const at::Tensor whole = random(p.spec.shape, derive_seed(7, p.name)) * 0.2;
    p.value.detach().copy_(test::local_part(whole, p.spec, mesh.coordinates()));
  }
}

/// A drawn clip and what it took.
struct Drawn {
  at::Tensor clip{};
  std::map<double, int> attention{};  ///< calls by operations, on rank 0
  double switched = 0;                ///< elements that all ranks exchanged
};

Drawn drawn(const Drawing& drawing, const ParallelConfig& layout = {}) {
  const noise::SamplerPlan plan = noise::plan_sampler(noise::NoiseLevels({}), {.steps = kSteps});
  Drawn result;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    distributed::DistributedModel model(mesh, layout, test::tiny_stdit(), {.dtype = at::kDouble}, {});
    set_random_weights(model, mesh);
    const auto calls = std::make_shared<std::map<double, int>>();
    const tensor::OperationListener listener([calls](double operations, const tensor::Operation& what) {
      if (what.kind == tensor::Operation::Kind::Attention) ++(*calls)[operations];
    });
    const at::Tensor own = draw(model, plan, drawing);
    const std::lock_guard lock(mutex);
    result.switched += world.traffic().total("sequence", "all_to_all").elements;
    if (world.rank() != 0) return;
    result.clip = own;
    result.attention = *calls;
  });
  return result;
}

double apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(DrawnClips, HaveTheirFramesAndSize) {
  Drawing drawing = clip({});
  EXPECT_EQ(drawn(drawing).clip.sizes(), at::IntArrayRef({1, 3, 3, 3, 5}));
  drawing.frames = 2;
  drawing.size = {4, 4};
  EXPECT_EQ(drawn(drawing).clip.sizes(), at::IntArrayRef({1, 3, 2, 4, 4}));
  drawing.start = random({1, 3, 3, 4, 4}, 1);
  EXPECT_THAT(test::thrown_message([&] { drawn(drawing); }),
              HasSubstr("the starting noise must have the sizes [1, 3, 2"));
}

TEST(DrawnClips, ReuseNothingInRangesOfOneStep) {
  EXPECT_TRUE(at::equal(drawn(clip(kNone)).clip, drawn(clip({})).clip));
}

// A block of places, a block of frames, and the caption in both: of two rows with 3 frames of 6 places, 24 features and
// captions of 4 words. Counts are those of the first test.
TEST(DrawnClips, ComputeAttentionInTheStepsThatDoNotReuseIt) {
  constexpr double kOfPair = 4 * 24 * 2, kSpace = kOfPair * 3 * 6 * 6, kTime = kOfPair * 6 * 3 * 3,
                   kCaption = kOfPair * 3 * 6 * 4;
  const Drawn exact = drawn(clip({})), pab = drawn(clip(AttentionBroadcast()));
  EXPECT_THAT(exact.attention, ElementsAre(std::pair(kTime, 20), std::pair(kCaption, 40), std::pair(kSpace, 20)));
  EXPECT_THAT(pab.attention, ElementsAre(std::pair(kTime, 10), std::pair(kCaption, 18), std::pair(kSpace, 13)));
  for (const AttentionBroadcast& one : {AttentionBroadcast{.space = 2, .time = 1, .caption = 1},
                                        AttentionBroadcast{.space = 1, .time = 4, .caption = 1},
                                        AttentionBroadcast{.space = 1, .time = 1, .caption = 6}})
    EXPECT_GT(apart(drawn(clip(one)).clip, exact.clip), 1e-6) << one.space << one.time << one.caption;
}

TEST(DrawnClips, EqualThoseOfOneProcessInEveryLayout) {
  const Drawing drawing = clip(AttentionBroadcast());
  const at::Tensor want = drawn(drawing).clip;
  std::vector<ParallelConfig> layouts(5);
  layouts[0].sequence = {.size = 2, .mode = "dsp"};
  layouts[1].sequence = {.size = 2, .mode = "ulysses"};
  layouts[2].tensor.size = 2;
  layouts[3].pipeline = {.size = 2, .micro_batches = 1};
  layouts[4].sequence = {.size = 2, .mode = "ring"};
  for (const ParallelConfig& layout : layouts)
    EXPECT_LT(apart(drawn(drawing, layout).clip, want), 1e-9)
        << layout.sequence.mode << layout.tensor.size << layout.pipeline.size;
}

// Two switches of half of two rows with 3 frames of 6 places and 24 features.
TEST(DrawnClips, SwitchAxesOnlyWhereTheyAttend) {
  constexpr double kOfStep = 2 * 2 * 3 * 6 * 24 / 2.;
  ParallelConfig layout;
  layout.sequence = {.size = 2, .mode = "dsp"};
  EXPECT_EQ(drawn(clip({}), layout).switched, 20 * kOfStep);
  EXPECT_EQ(drawn(clip(AttentionBroadcast()), layout).switched, 13 * kOfStep);
}

TEST(DrawnPictures, NeedTwoAxesToReuseAttention) {
  const noise::SamplerPlan plan = noise::plan_sampler(noise::NoiseLevels({}), {.steps = 2});
  const auto picture = [&](const Drawing& drawing) {
    return test::thrown_message([&] {
      comm::run_ranks(1, [&](comm::World& world) {
        comm::Mesh mesh(world, ParallelConfig().axes());
        distributed::DistributedModel model(mesh, {}, test::tiny_dit(), {.dtype = at::kDouble}, {});
        draw(model, plan, drawing);
      });
    });
  };
  EXPECT_THAT(picture({.classes = {1}, .seeds = {1}, .broadcast = AttentionBroadcast()}),
              HasSubstr("needs a model with two axes, such as an STDiT: got dit"));
  EXPECT_THAT(picture({.classes = {1}, .seeds = {1}, .frames = 2}),
              HasSubstr("only a model of clips draws frames: got 2"));
  EXPECT_THAT(test::thrown_message([] { Drawer::check({}, {.drawn = "0", .approximate = "pab"}, {}); }),
              HasSubstr("approximate = pab needs a model with two axes"));
  EXPECT_THAT(test::thrown_message([] { DrawOptions{.drawn = "0", .approximate = "tgate"}.check(); }),
              HasSubstr("approximate must be pab: got tgate"));
}

}  // namespace
}  // namespace colossal::diffusion::attention_broadcast_test
