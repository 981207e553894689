// Regions of small functions: which dimensions are free, what is in a loop and what runs before it, and plans as data.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/auto_chunk/planner.h"
#include "colossal/auto_chunk/run.h"
#include "colossal/auto_chunk/timeline.h"
#include "colossal/tensor/whole_operator.h"
#include "support/thrown_message.h"

namespace colossal::auto_chunk::regions_test {
namespace {

using test::thrown_message;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int64_t kRows = 12, kWidth = 7;

at::Tensor waves(const std::vector<int64_t>& shape, double phase) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).mul(.37).add(phase).sin().view(shape);
}

/// A traced function of x [12, 7], and everything that refers to it.
struct Traced {
  explicit Traced(const trace::Function& function, bool overwritten = true)
      : function(function),
        traced(trace::trace_function(function, {input()})),
        graph(traced, {.overwritten = {overwritten}, .dims = {{"row", "column"}}}),
        planner(graph) {}
  static at::Tensor input() { return waves({kRows, kWidth}, 1); }
  int node(const std::string& op) const {
    for (size_t i = 0; i < traced.graph.nodes.size(); ++i)
      if (traced.graph.nodes[i].op == op) return static_cast<int>(i);
    ADD_FAILURE() << "no node " << op;
    return 0;
  }
  PlannedChunks smallest() const { return planner.plan(planner.smallest_peak()); }
  void expect_same(const ChunkPlan& plan) const {
    const at::Tensor wanted = function({input()})[0], got = run(graph, schedule_of(graph, plan), {input()})[0];
    EXPECT_LE((wanted - got).abs().max().item<double>(), 1e-12);
  }

  trace::Function function;
  trace::TracedModule traced;
  ChunkGraph graph;
  ChunkPlanner planner;
};

/// A wide operator between narrow ones, whose rows are apart.
std::vector<at::Tensor> wide(const std::vector<at::Tensor>& in) {
  const at::Tensor up = waves({kWidth, 64}, 2), down = waves({64, kWidth}, 3);
  return {in[0] + at::matmul(at::matmul(in[0], up).exp(), down)};
}

TEST(FreeDims, LeaveOutSums) {
  const Traced made([](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {at::softmax(at::matmul(in[0], in[0].t()), 1).reshape({3, 4, kRows}).sum(2)};
  });
  const NodeDims product = free_dims(made.traced, made.node("linear")),
                 soft = free_dims(made.traced, made.node("softmax"));
  EXPECT_EQ(product.operands[0][0], product.output[0]);
  EXPECT_EQ(product.operands[0][1], -1);
  EXPECT_GE(product.output[1], 0);
  EXPECT_GE(soft.output[0], 0);
  EXPECT_EQ(soft.output[1], -1);
  EXPECT_EQ(free_dims(made.traced, made.node("reshape")).output[0], -1) << "blocks of 3 are no blocks of 12";
  EXPECT_GE(free_dims(made.traced, made.node("sum")).output[0], 0);
}

TEST(Regions, CutWhatIsWide) {
  const Traced made(wide);
  const PlannedChunks planned = made.smallest();
  ASSERT_EQ(planned.plan.regions.size(), 1u);
  EXPECT_EQ(planned.plan.regions[0].dim, "row");
  EXPECT_EQ(planned.plan.regions[0].size, 1);
  EXPECT_THAT(planned.plan.regions[0].nodes, Contains("exp"));
  EXPECT_LT(planned.peak, made.planner.plan(0).peak / 3);
  made.expect_same(planned.plan);
  ChunkPlan uneven = planned.plan;
  uneven.regions[0].size = 5;  // 5, 5 and 2
  made.expect_same(uneven);
}

TEST(Regions, OverwriteAnInputOnlyIfTheyMay) {
  const Traced kept(wide, false), given(wide, true);
  EXPECT_EQ(kept.planner.smallest_peak(), given.planner.smallest_peak() + kRows * kWidth * 8);
  const at::Tensor x = Traced::input();
  run(kept.graph, schedule_of(kept.graph, kept.smallest().plan), {x});
  EXPECT_TRUE(at::equal(x, Traced::input()));
}

TEST(Regions, OverwriteNothingThatIsReadLater) {
  const Traced made([](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor once = in[0].exp(), again = once * in[0], view = again.t();
    return {again + once + (again.sigmoid() * again + view.t().sin())};
  });
  made.expect_same({});
  made.expect_same(made.smallest().plan);
}

TEST(Regions, RunBeforeTheLoopWhatDependsOnAllRows) {
  const Traced made([](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor x = in[0].sin(), up = waves({kWidth, 64}, 2), down = waves({64, kWidth}, 3);
    const at::Tensor whole = x.mean(0);
    return {in[0] + at::matmul((at::matmul(x, up)).exp(), down) * whole};
  });
  const PlannedChunks planned = made.smallest();
  made.expect_same(planned.plan);
  ASSERT_THAT(planned.plan.regions, Not(IsEmpty()));
  for (const ChunkRegion& region : planned.plan.regions)
    EXPECT_TRUE(region.dim != "row" || !std::count(region.nodes.begin(), region.nodes.end(), "mean"));
}

/// Stands for an operator that communicates.
at::Tensor exchanged(const at::Tensor& x) {
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record({"exchanged", "", {x}, [](const auto& in) { return exchanged(in[0]); }});
  return x * 2;
}

TEST(Regions, NeverHoldAnOperatorThatCommunicates) {
  const Traced made([](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {exchanged(wide({exchanged(wide(in)[0])})[0])};
  });
  const PlannedChunks planned = made.smallest();
  EXPECT_EQ(planned.plan.regions.size(), 2u);
  for (const ChunkRegion& region : planned.plan.regions)
    for (const std::string& name : region.nodes) EXPECT_THAT(name, Not(HasSubstr("exchanged")));
  made.expect_same(planned.plan);
}

TEST(Regions, SurviveAFile) {
  const Traced made(wide);
  const ChunkPlan plan = made.smallest().plan;
  const std::string path = testing::TempDir() + "/chunks.json";
  write_chunks(plan, path);
  EXPECT_EQ(read_chunks(path), plan);
}

TEST(Regions, RefusePlansOfOtherGraphs) {
  const Traced made(wide);
  const ChunkPlan plan = made.smallest().plan;
  const auto refusal = [&](const auto& change) {
    ChunkPlan other = plan;
    change(other.regions[0]);
    return thrown_message([&] { schedule_of(made.graph, other); });
  };
  EXPECT_EQ(refusal([](ChunkRegion&) {}), "");
  EXPECT_THAT(refusal([](ChunkRegion& r) { r.nodes[0] = "other"; }), HasSubstr("other"));
  EXPECT_THAT(refusal([](ChunkRegion& r) { r.cuts[0] = 7; }), HasSubstr("cannot be cut along dimension 7"));
  EXPECT_THAT(refusal([](ChunkRegion& r) { r.cuts.pop_back(); }), HasSubstr("a cut of each"));
  EXPECT_THAT(thrown_message([&] { schedule_of(made.graph, {.regions = {plan.regions[0], plan.regions[0]}}); }),
              HasSubstr("is in two loops"));
  EXPECT_THAT(thrown_message([&] { run(made.graph, schedule_of(made.graph, plan), {waves({3, kWidth}, 1)}); }),
              HasSubstr("input 0 must be [12, 7]"));
}

}  // namespace
}  // namespace colossal::auto_chunk::regions_test
