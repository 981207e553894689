// The examples at the beginning of headers of trace, compiled and run. tests/base/examples_test.cpp compares them with
// the headers.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <memory>
#include <string>
#include <vector>

#include "colossal/plan/graph.h"
#include "colossal/trace/heard_call.h"
#include "colossal/trace/trace.h"
#include "trace/modules.h"

namespace colossal::header_examples {
namespace {

TEST(HeaderExamples, Trace) {
  const auto net = std::make_shared<trace::test::Mlp>();
  net->to(at::kDouble);
  const at::Tensor points = net->inputs(8)[0], targets = net->inputs(8)[1];
  const std::string folder = testing::TempDir();
  const auto loss = [&](const std::vector<at::Tensor>& in) { return torch::mse_loss(net->forward(in[0]), in[1]); };
  const trace::TracedModule traced = trace::trace_loss(*net, loss, {points, targets});
  plan::write_graph(traced.graph, folder + "/graph.json");
  EXPECT_EQ(plan::read_graph(folder + "/graph.json").nodes, traced.graph.nodes);
}

}  // namespace
}  // namespace colossal::header_examples

namespace colossal::trace {
namespace {

TEST(HeaderExamples, HeardCall) {
  const std::vector<at::Tensor> tensors{at::zeros({2, 2}), at::zeros({2, 2})};
  const HeardCall call{operator_named("aten::cat"), {tensors, 1}};
  const int64_t dim = call.argument("dim").toInt();
  EXPECT_EQ(dim, 1);
}

}  // namespace
}  // namespace colossal::trace
