// Reports and loss terms of layers on one rank: what is declared, what is added up, and the gradients of loss terms.
#include "colossal/nn/reports.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/recompute.h"
#include "support/thrown_message.h"

namespace colossal::nn::reports_test {
namespace {

using tensor::BatchSplit;
using testing::HasSubstr;

TEST(Reports, JoinRanksWithOtherRowsOrTokens) {
  // 2 stages, 3 replicas, 2 ranks that split the tokens of a layout, and 4 ranks that hold the same hidden states.
  const auto reports_of = [](int stage, int data, int tokens, int copy) {
    const tensor::MeshCoordinates coordinates(
        {{"pipeline", 2, stage}, {"data", 3, data, BatchSplit::Rows}, {"tokens", 2, tokens}, {"copies", 4, copy}});
    Reports reports(coordinates, {"tokens"});
    reports.add({.name = "load"});
    reports.add_loss({.name = "term", .over = Over::Same});
    return reports;
  };
  for (int stage = 0; stage < 2; ++stage)
    for (int data = 0; data < 3; ++data)
      for (int tokens = 0; tokens < 2; ++tokens)
        for (int copy = 0; copy < 4; ++copy) {
          const Reports reports = reports_of(stage, data, tokens, copy);
          EXPECT_EQ(reports.ranks(), 6);
          EXPECT_EQ(reports.joins(reports.declared()[0]), copy == 0);
          EXPECT_EQ(reports.joins(reports.declared()[1]), copy == 0 && data == 0 && tokens == 0) << "all have the same";
        }
}

TEST(Reports, AddValuesInOneVector) {
  Reports reports;
  const Report counts = reports.add({.name = "counts", .size = 2});
  const Report largest = reports.add({.name = "largest", .over = Over::Max});
  const Report mean = reports.add({.name = "mean", .over = Over::Mean});
  EXPECT_EQ(reports.sums(), 3);
  EXPECT_EQ(reports.maxima(), 1);
  ReportAccumulator accumulator(reports, at::kCPU);
  const double none = -std::numeric_limits<double>::infinity();
  EXPECT_TRUE(at::equal(accumulator.values(), at::tensor({0.0, 0.0, 0.0, none}, at::kDouble)));
  accumulator.add(counts, at::tensor({3, 4}, at::kLong));
  accumulator.add(counts, at::tensor({10, 20}, at::kInt));
  accumulator.add(largest, at::tensor(-5.0, at::kFloat));
  accumulator.add(largest, at::tensor(-7.0, at::kFloat));
  accumulator.add(mean, at::full({}, 0.5, at::kHalf).requires_grad_());
  EXPECT_TRUE(at::equal(accumulator.values(), at::tensor({13.0, 24.0, 0.5, -5.0}, at::kDouble)));
  EXPECT_FALSE(accumulator.values().requires_grad());
  accumulator.begin(1);
  EXPECT_TRUE(at::equal(accumulator.values(), at::tensor({0.0, 0.0, 0.0, none}, at::kDouble)));
}

/// Returns the gradient of x for x -> y with the loss sum(x^2) attached, without the 3 of y itself.
double gradient_of_loss(const tensor::MeshCoordinates& coordinates, Over over, double weight, double loss_factor) {
  Reports reports(coordinates, {});
  const Report term = reports.add_loss({.name = "term", .weight = weight, .over = over});
  ReportAccumulator accumulator(reports, at::kCPU);
  accumulator.begin(loss_factor);
  const at::Tensor x = at::full({1}, 5.0, at::kDouble).requires_grad_();
  const at::Tensor y = accumulator.attach(term, x.square().sum(), x * 3);
  EXPECT_EQ(y.item<double>(), 15);
  y.sum().backward();
  return x.grad().item<double>() - 3;
}

TEST(LossTerm, ScalesGradientByWeightAndFactor) {
  const tensor::MeshCoordinates one, four({{"data", 4, 1, BatchSplit::Rows}});
  EXPECT_EQ(gradient_of_loss(one, Over::Mean, 0.5, 1), 5) << "0.5 d(x^2) = 0.5 * 10";
  EXPECT_EQ(gradient_of_loss(one, Over::Mean, 0.5, 64), 320);
  EXPECT_EQ(gradient_of_loss(four, Over::Mean, 0.5, 64), 80);
  EXPECT_EQ(gradient_of_loss(four, Over::Same, 0.5, 64), 320) << "the layer has joined the ranks";
}

TEST(LossTerm, AttachesToStateWithoutGradient) {
  Reports reports;
  const Report term = reports.add_loss({.name = "term", .weight = 2});
  const ReportAccumulator accumulator(reports, at::kCPU);
  const at::Tensor w = at::full({}, 3.0, at::kDouble).requires_grad_();
  accumulator.attach(term, w.square(), at::ones({4}, at::kDouble)).sum().backward();
  EXPECT_EQ(w.grad().item<double>(), 12);
}

/// A step with its own reports: a value and a loss term.
struct Reporting {
  Reporting() {
    step.parts.set(ReportsOfStep{std::make_shared<ReportAccumulator>(reports, at::kCPU)});
    accumulator_of(step)->begin(1);
  }
  /// Returns 2 x; reports the sum of x and attaches the loss of x^2.
  at::Tensor block(const at::Tensor& x, const ForwardContext& of) const {
    of.report(value, x.sum());
    return of.attach_loss(term, x.square().sum(), x * 2);
  }
  Reports reports;
  Report value = reports.add({.name = "value"}), term = reports.add_loss({.name = "term"});
  ForwardContext step;
};

TEST(StepReport, ReportsRecomputedBlockOnce) {
  const Reporting reporting;
  const at::Tensor x = at::tensor({3.0, 4.0}, at::kDouble).requires_grad_();
  const auto block = [&reporting, step = reporting.step](const at::Tensor& h) mutable {
    const at::Tensor y = reporting.block(h, step);
    step.is_recomputed = true;
    return y;
  };
  recomputed(block, x).sum().backward();
  EXPECT_TRUE(at::equal(accumulator_of(reporting.step)->values(), at::tensor({7.0, 25.0}, at::kDouble)));
  EXPECT_TRUE(at::equal(x.grad(), at::tensor({8.0, 10.0}, at::kDouble))) << "2 + 2 x";
}

TEST(StepReport, ReportsNothingWithoutReceiver) {
  const Reporting reporting;
  const at::Tensor x = at::tensor({3.0}, at::kDouble).requires_grad_();
  reporting.block(x, {}).sum().backward();
  EXPECT_EQ(x.grad().item<double>(), 2) << "no loss is attached";
  EXPECT_EQ(accumulator_of(reporting.step)->values()[0].item<double>(), 0);
}

TEST(Reports, RefuseTakenNamesAndInvalidJoins) {
  Reports reports;
  reports.add({.name = "blocks.0.load"});
  EXPECT_THAT(test::thrown_message([&] { reports.add_loss({.name = "blocks.0.load"}); }),
              HasSubstr("[model] the name of a report must be new: `blocks.0.load` is declared already"));
  EXPECT_THAT(test::thrown_message([&] { reports.add({}); }), HasSubstr("must have a name: got none"));
  EXPECT_THAT(test::thrown_message([&] { reports.add({.name = "x", .size = 0}); }), HasSubstr("got size 0 of `x`"));
  EXPECT_THAT(test::thrown_message([&] { reports.add_loss({.name = "x", .over = Over::Sum}); }),
              HasSubstr("must be over Mean or Same: got Sum of `x`"));
  EXPECT_THAT(test::thrown_message([&] { reports.add_loss({.name = "x", .weight = std::nan("")}); }),
              HasSubstr("the weight of a loss term must be finite: got nan of `x`"));
  EXPECT_EQ(reports.declared().size(), 1U);
}

TEST(Reports, RefuseUndeclaredReports) {
  Reporting reporting;
  const char* undeclared = "[model] a report must be declared when its layer is made";
  const at::Tensor one = at::ones({}, at::kDouble);
  for (const ForwardContext& step : {reporting.step, ForwardContext{}}) {
    EXPECT_THAT(test::thrown_message([&] { step.report({}, one); }), HasSubstr(undeclared)) << "also in evaluation";
    EXPECT_THAT(test::thrown_message([&] { step.attach_loss({}, one, one); }), HasSubstr(undeclared));
  }
  const Report late = reporting.reports.add({.name = "late"});
  EXPECT_THAT(test::thrown_message([&] { reporting.step.report(late, one); }), HasSubstr(undeclared))
      << "after the model was made";
  EXPECT_THAT(test::thrown_message([] { Reported().at({0}); }), HasSubstr(undeclared));
  EXPECT_THAT(test::thrown_message([&] { reporting.step.report(reporting.value, at::ones({3})); }),
              HasSubstr("the report `value` must have the declared 1 elements: got sizes [3]"));
  EXPECT_THAT(test::thrown_message([&] { reporting.step.attach_loss(reporting.value, one, one); }),
              HasSubstr("must be declared with add_loss(): got `value`"));
  EXPECT_THAT(test::thrown_message([&] { reporting.step.attach_loss(reporting.term, one.to(at::kHalf), one); }),
              HasSubstr("the loss term `term` must be one number in fp32 or fp64: got sizes [] of Half"));
  EXPECT_THAT(test::thrown_message([&] { reporting.step.attach_loss(reporting.term, at::ones({2}), one); }),
              HasSubstr("got sizes [2] of Float"));
}

}  // namespace
}  // namespace colossal::nn::reports_test
