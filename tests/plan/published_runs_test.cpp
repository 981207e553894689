// Simulated steps of published runs: layouts whose times are known are predicted from others, or from data sheets.
//
// Sources: MegaScale (arXiv 2402.15627), the table of GPT 175B on A100, and torchtitan's published tokens per second on
// H100. We assume what they do not say:
// - 175B: tensor 8, pipeline 8, six chunks a stage, one row of 2,048 tokens a micro-batch, vocabulary 64,000, no
//   recomputation, all pairs of attention. Both systems reduce gradients after the last backward
//   pass; MegaScale hides a part of that, which makes its fitted `extra` smaller.
// - torchtitan 70B and 405B: full recomputation, causal attention; 405B: as many micro-batches as stages. The 126
//   layers are 128, because stages are equal.
// - memory traffic and the bytes of gradients: the constants of StageEvents.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "colossal/plan/cluster_costs.h"
#include "plan/published_layouts.h"

namespace colossal::plan::published_runs_test {
namespace {

using test::PublishedLayout;
using test::PublishedModel;

const PublishedModel kGpt175{
    .layers = 96, .hidden = 12288, .kv_hidden = 12288, .inner = 4 * 12288, .vocabulary = 64000, .sequence = 2048};

double seconds_of(const PublishedModel& model, const PublishedLayout& layout, const Profile& profile) {
  const Cluster cluster(profile);
  return simulate_step(test::published_roles(model, layout), ClusterCosts(cluster)).seconds;
}

/// One row of the table: GPUs, batch, seconds of a step.
struct Point {
  int64_t gpus, batch;
  double seconds;
};

struct System {
  const char* name;
  std::vector<Point> fitted, predicted;
};

const System kMegatron{"Megatron",
                       {{256, 768, 40.0}, {512, 768, 21.2}, {768, 768, 15.2}, {1024, 768, 11.9}},
                       {{3072, 6144, 29.02}, {6144, 6144, 14.78}, {8192, 6144, 12.24}, {12288, 6144, 8.57}}};
const System kMegaScale{"MegaScale",
                        {{256, 768, 32.0}, {512, 768, 16.5}, {768, 768, 11.5}, {1024, 768, 8.9}},
                        {{3072, 6144, 23.66}, {6144, 6144, 12.21}, {8192, 6144, 9.56}, {12288, 6144, 6.34}}};

PublishedLayout layout_of(const Point& point) {
  const int64_t data = point.gpus / 64;
  return {.tensor = 8, .pipeline = 8, .chunks = 6, .data = data, .micro_batches = point.batch / data};
}

Profile a100(double efficiency) {
  Profile profile = find_profile("a100-8x");
  profile.device.efficiency = efficiency;
  return profile;
}

/// Three constants of a system: the share of the peak that products reach; the share of the communication of gradients
/// and parameters that nothing hides; seconds of each step that are neither products, traffic nor calls (waiting for
/// input, starts, late ranks).
struct Constants {
  double efficiency = 0, exposed = 0, extra = 0;
};

double seconds_with(const Point& point, const Constants& constants) {
  PublishedLayout layout = layout_of(point);
  layout.exposed = constants.exposed;
  return seconds_of(kGpt175, layout, a100(constants.efficiency)) + constants.extra;
}

/// A step is linear in 1 / efficiency and in `exposed`, as long as the same chain of events is the longest.
struct Line {
  double of_products = 0, of_calls = 0, rest = 0;  ///< for 1 / efficiency, for `exposed`, for neither
};

Line line_of(const Point& point) {
  constexpr double kLow = 0.5, kHigh = 0.8;
  const double low = seconds_with(point, {kLow, 0}), high = seconds_with(point, {kHigh, 0});
  Line line{.of_products = (low - high) / (1 / kLow - 1 / kHigh), .of_calls = seconds_with(point, {kHigh, 1}) - high};
  line.rest = low - line.of_products / kLow;
  return line;
}

/// Fits the constants by least squares of the relative errors of system.fitted: `exposed` is the best of 0, 0.01 to 1,
/// the other two follow from it. `extra` is not negative.
Constants fit(const System& system) {
  constexpr int kShares = 100;
  std::vector<Line> lines;
  for (const Point& point : system.fitted) lines.push_back(line_of(point));
  Constants best;
  double least = std::numeric_limits<double>::infinity();
  for (int share = 0; share <= kShares; ++share) {
    const double exposed = static_cast<double>(share) / kShares;
    double aa = 0, ab = 0, bb = 0, ay = 0, by = 0, yy = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      const double seconds = system.fitted[i].seconds, a = lines[i].of_products / seconds, b = 1 / seconds,
                   y = 1 - (lines[i].rest + exposed * lines[i].of_calls) / seconds;
      aa += a * a, ab += a * b, bb += b * b, ay += a * y, by += b * y, yy += y * y;
    }
    const double determinant = aa * bb - ab * ab;
    double slowness = (ay * bb - by * ab) / determinant, extra = (aa * by - ab * ay) / determinant;
    if (extra < 0) slowness = ay / aa, extra = 0;
    const double residual = yy - 2 * (slowness * ay + extra * by) + slowness * slowness * aa +
                            2 * slowness * extra * ab + extra * extra * bb;
    if (residual >= least) continue;
    least = residual;
    best = {1 / slowness, exposed, extra};
  }
  return best;
}

void check_system(const System& system) {
  const Constants constants = fit(system);
  std::printf("%s: efficiency %.3f, exposed %.2f, extra %.3f s\n", system.name, constants.efficiency,
              constants.exposed, constants.extra);
  ASSERT_GT(constants.efficiency, 0.3);
  ASSERT_LT(constants.efficiency, 1);
  const auto error_of = [&](const Point& point) {
    const double seconds = seconds_with(point, constants);
    std::printf("%s %d GPUs, batch %d: %.2f s, published %.2f s, %+.1f %%\n", system.name, static_cast<int>(point.gpus),
                static_cast<int>(point.batch), seconds, point.seconds, 100 * (seconds / point.seconds - 1));
    return std::abs(seconds / point.seconds - 1);
  };
  for (const Point& point : system.fitted) EXPECT_LE(error_of(point), 0.08) << system.name << " " << point.gpus;
  for (const Point& point : system.predicted) EXPECT_LE(error_of(point), 0.08) << system.name << " " << point.gpus;
}

TEST(PublishedRuns, PredictsMegatronsLargeRunsFromSmallOnes) { check_system(kMegatron); }
TEST(PublishedRuns, PredictsMegaScalesLargeRunsFromSmallOnes) { check_system(kMegaScale); }

struct Titan {
  const char* name;
  PublishedModel model;
  PublishedLayout layout;
  double tokens;  ///< a second of a GPU, published
};

const PublishedModel kLlama70{80, 8192, 1024, 28672, 128256, 8192, true, true};
const PublishedModel kLlama405{128, 16384, 1024, 53248, 128256, 8192, true, true};  // 126 layers and two light stages

const std::vector<Titan> kTitan{
    {"70B on 256",
     kLlama70,
     {.tensor = 8, .data = 32, .micro_batch = 16, .recomputed = 1, .gathers_blocks = true},
     829},
    {"405B on 512, 1F1B",
     kLlama405,
     {.tensor = 8,
      .pipeline = 8,
      .data = 8,
      .micro_batches = 8,
      .micro_batch = 4,
      .recomputed = 1,
      .overlaps_data = true},
     100},
    {"405B on 512, interleaved",
     kLlama405,
     {.tensor = 8,
      .pipeline = 8,
      .chunks = 2,
      .data = 8,
      .micro_batches = 8,
      .micro_batch = 4,
      .recomputed = 1,
      .overlaps_data = true},
     128},
};

// Of torchtitan's 8B this model predicts 1.4 times the published 6,667 tokens: without tensor parallelism its time is
// also in attention kernels and unfused elementwise operators, which have no constants of their own in a profile.
TEST(PublishedRuns, PredictsTorchtitansLargeModels) {
  for (const Titan& run : kTitan) {
    const double seconds = seconds_of(run.model, run.layout, find_profile("h100-8x"));
    const double tokens = run.layout.tokens(run.model) / seconds / static_cast<double>(run.layout.ranks());
    std::printf("torchtitan %s: %.0f tokens/s, published %.0f, %+.1f %%\n", run.name, tokens, run.tokens,
                100 * (tokens / run.tokens - 1));
    EXPECT_NEAR(tokens / run.tokens, 1, 0.15) << run.name;
  }
}

}  // namespace
}  // namespace colossal::plan::published_runs_test
