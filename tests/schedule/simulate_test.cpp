// The simulator gives the bubbles and live activations of the papers.
#include "colossal/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/schedule/search.h"
#include "schedule/orders.h"

namespace colossal::schedule::simulate_test {
namespace {

constexpr double kSlack = 1e-9;

Timeline run(const std::string& name, int stages, int micro_batches, const Costs& costs = {}, int chunks = 0) {
  return simulate(make(name, stages, micro_batches, costs, chunks), costs);
}

double peak(const Timeline& timeline) {
  return *std::max_element(timeline.peak_live.begin(), timeline.peak_live.end());
}

/// Returns the idle share of the total time, which some papers use.
double of_total(const Timeline& timeline) { return timeline.bubble() / (1 + timeline.bubble()); }

const Costs kUnequal{.forward = 1, .backward_input = 1.2, .backward_weight = 0.8};
const Costs kBackwardAsForward{.forward = 1, .backward_input = 0.5, .backward_weight = 0.5};

TEST(Bubble, MatchesGpipeAndOneForwardOneBackward) {
  for (const Costs& costs : {Costs{}, kUnequal, kBackwardAsForward}) {
    for (int p = 1; p <= 9; ++p) {
      for (const int m : {p, 2 * p, 3 * p + 1}) {
        SCOPED_TRACE(testing::Message() << p << " " << m);
        const Timeline gpipe = run("gpipe", p, m, costs), one = run("1f1b", p, m, costs);
        EXPECT_NEAR(gpipe.bubble(), (p - 1.0) / m, kSlack);
        EXPECT_NEAR(one.bubble(), (p - 1.0) / m, kSlack);
        EXPECT_NEAR(of_total(one), (p - 1.0) / (m + p - 1), kSlack);
        EXPECT_EQ(peak(gpipe), m);
        for (int rank = 0; rank < p; ++rank) EXPECT_EQ(one.peak_live[rank], p - rank);
        EXPECT_EQ(one.transfers, 2 * m * (p - 1));
      }
    }
  }
}

TEST(Bubble, MatchesInterleaved) {
  for (int p = 2; p <= 8; ++p) {
    for (int v = 2; v <= 4; ++v) {
      const int m = 3 * p;
      const Timeline timeline = run("interleaved", p, m, kUnequal, v);
      EXPECT_NEAR(timeline.bubble(), (p - 1.0) / (v * m), kSlack) << p << " " << v;
      EXPECT_NEAR(peak(timeline), p * (1 + (p - 1.0) / (p * v)), kSlack) << p << " " << v;
      EXPECT_EQ(timeline.transfers, 2 * m * (p * v - 1));
    }
  }
}

TEST(Bubble, TakesAThirdOfOneForwardOneBackwardInZeroBubbleH1) {
  for (int p = 1; p <= 9; ++p) {
    for (const int m : {2 * p, 4 * p}) {
      const Timeline timeline = run("zero-bubble-h1", p, m);
      EXPECT_NEAR(timeline.bubble(), run("1f1b", p, m).bubble() / 3, kSlack) << p << " " << m;
      EXPECT_LE(peak(timeline), p);
    }
  }
  const Timeline timeline = run("zero-bubble-h1", 4, 8);
  EXPECT_EQ(timeline.makespan, 27);
  EXPECT_EQ(timeline.peak_live, (std::vector<double>{4, 4, 3.5, 2.5}));
}

TEST(Bubble, MatchesZeroBubbleAtUnequalCosts) {
  for (const Costs& costs : {kUnequal, Costs{.forward = 1, .backward_input = 1.1, .backward_weight = 0.9}}) {
    const double f = costs.forward, b = costs.backward_input, w = costs.backward_weight;
    for (const int p : {2, 3, 4, 6, 8}) {
      const int m = 4 * p;
      const double ideal = m * (f + b + w);
      const Timeline h1 = run("zero-bubble-h1", p, m, costs), h2 = run("zero-bubble-h2", p, m, costs);
      EXPECT_NEAR(h1.bubble() * ideal, (p - 1) * (f + b - w), 1e-6) << p;
      EXPECT_LE(peak(h1), p + kSlack);
      EXPECT_LE(h2.bubble() * ideal, (p - 1) * (f + b - 2 * w) + 1e-6) << p;
      EXPECT_LE(peak(h2), 2 * p - 1 + kSlack);
    }
  }
}

TEST(Bubble, NeedsTheSearchForZeroBubbleAtUnequalCosts) {
  const Placement placement = Placement::looped(8, 1);
  const Schedule greedy{"greedy", placement, 32, list_schedule(placement, 32, kUnequal, {.limit = 8})};
  EXPECT_NEAR(simulate(greedy, kUnequal).bubble() * 32 * 3, 16.2, 1e-6);
  EXPECT_NEAR(run("zero-bubble-h1", 8, 32, kUnequal).bubble() * 32 * 3, 9.8, 1e-6);
}

TEST(Bubble, VanishesInZeroBubbleH2AndV) {
  for (int p = 1; p <= 9; ++p) {
    for (const int m : {2 * p, 4 * p}) {
      const Timeline h2 = run("zero-bubble-h2", p, m), v = run("zero-bubble-v", p, m);
      EXPECT_NEAR(h2.bubble(), 0, kSlack) << p << " " << m;
      EXPECT_NEAR(v.bubble(), 0, kSlack) << p << " " << m;
      EXPECT_LE(peak(h2), 2 * p - 1);
      for (const double live : v.peak_live) EXPECT_EQ(live, p) << m;
      EXPECT_EQ(v.transfers, 2 * m * 2 * (p - 1));
    }
  }
  EXPECT_EQ(peak(run("zero-bubble-h2", 4, 8)), 7);
}

TEST(Bubble, MatchesVHalfAndVMin) {
  for (int p = 2; p <= 16; ++p) {
    const int m = 3 * p;
    const Timeline half = run("v-half", p, m), least = run("v-min", p, m);
    // about p/2m; an odd number of ranks turns less efficiently
    EXPECT_LE(half.bubble(), (p + 2 * (p % 2)) / (2.0 * m) + kSlack) << p;
    EXPECT_LE(least.bubble(), 2 * p / (3.0 * m) + kSlack) << p;
    EXPECT_EQ(peak(half), (p + 2) / 2) << p;
    EXPECT_LE(peak(least), (p + 4) / 3) << p;
    EXPECT_GT(peak(least), (p + 4) / 3 - 1) << p;
  }
}

TEST(Bubble, MatchesChimera) {
  for (const int p : {2, 4, 6, 8}) {
    for (const int m : {p, 2 * p, 4 * p}) {
      EXPECT_NEAR(of_total(run("chimera", p, m, kBackwardAsForward)), (p - 2.0) / (2 * m + p - 2), kSlack)
          << p << " " << m;
    }
    const Timeline timeline = run("chimera", p, p);
    EXPECT_NEAR(of_total(timeline), (p - 2.0) / (1.5 * p + p - 2), kSlack) << p;
    EXPECT_EQ(timeline.peak_live.front(), p / 2 + 1);
    EXPECT_EQ(peak(timeline), p);
  }
}

TEST(Bubble, MatchesHanayo) {
  for (const int p : {4, 8, 16}) {
    for (const int waves : {1, 2, 4}) {
      const Timeline timeline = run("hanayo", p, p, {}, 2 * waves);
      EXPECT_NEAR(timeline.bubble() * 3 * p, 2.0 * (p - 1) / waves, kSlack) << p << " " << waves;
      EXPECT_LE(peak(timeline), p);
      EXPECT_EQ(timeline.transfers, 2 * p * 2 * waves * (p - 1));
    }
  }
}

TEST(Simulate, DelaysOnlyTheReceiverOfATransfer) {
  const Costs costs{.transfer = 0.5};
  const Timeline timeline = run("1f1b", 2, 1, costs);
  EXPECT_EQ(timeline.makespan, 1 + 0.5 + 3 + 0.5 + 2);
  EXPECT_EQ(timeline.busy, (std::vector<double>{3, 3}));
  for (const Event& event : timeline.events) {
    if (event.step.action == Action::SendForward || event.step.action == Action::ReceiveForward) {
      EXPECT_EQ(event.begin, 1);
      EXPECT_EQ(event.end, 1.5);
    }
  }
}

TEST(Simulate, AllowsStagesOfDifferentWeights) {
  const Costs costs{.stage_weights = {1, 2}};
  const Timeline timeline = run("1f1b", 2, 4, costs);
  EXPECT_EQ(timeline.busy, (std::vector<double>{12, 24}));
  EXPECT_EQ(timeline.makespan, 1 + 24 + 2);
}

TEST(Simulate, AllowsForwardToDifferFromBackward) {
  const Timeline timeline = run("1f1b", 2, 4, {.stage_weights = {1, 1}, .forward_weights = {1, 3}});
  EXPECT_EQ(timeline.busy, (std::vector<double>{12, 20}));
}

TEST(Simulate, AllowsAnyStepCosts) {
  const Schedule schedule = make("1f1b", 2, 2);
  const auto cost = [](int rank, const PipelineOp& step) {
    if (!is_compute(step.action)) return step.action == Action::Update ? 10.0 : 5.0;
    return rank == 0 ? 1.0 : 2.0;
  };
  const Timeline timeline = simulate(schedule, cost, [](int rank, const PipelineOp&) { return rank == 0 ? 1.0 : 0.0; });
  EXPECT_EQ(timeline.busy, (std::vector<double>{4, 8}));
  EXPECT_EQ(timeline.makespan, 1 + 1 + 8 + 1);
  EXPECT_EQ(timeline.events.back().end, 2 + 8 + 5 + 10);
}

TEST(Simulate, TakesTheShareOfWeightGradients) {
  const Schedule schedule = make("zero-bubble-h1", 4, 8);
  EXPECT_EQ(simulate(schedule, Costs{}, 0).peak_live, (std::vector<double>{4, 4, 3, 1}));
  EXPECT_EQ(simulate(schedule, Costs{}, 1).peak_live[3], 4);
}

TEST(Simulate, RefusesDeadlocks) {
  Schedule schedule = make("gpipe", 2, 1);
  std::swap(schedule.ranks[0].front(), schedule.ranks[0][3]);
  try {
    simulate(schedule, Costs{});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "gpipe deadlocks: rank 0 waits forever at step 0, B0");
  }
}

}  // namespace
}  // namespace colossal::schedule::simulate_test
