#include "colossal/parallel/expert/config.h"

#include "colossal/base/error.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {

void ExpertConfig::fields(Fields& f) {
  f.integer("size", size, "ranks",
            "number of ranks that divide the experts of each mixture layer, and the rows of the batch; must divide "
            "model.experts.count",
            1, 65536);
  f.choice("tensor", tensor, {"deal", "split"},
           "what the ranks of a tensor group do with experts: deal = each holds whole experts, split = each holds a "
           "part of every expert (1d)");
  f.choice("compress", compress, {"none", "fp8"},
           "format in which a forward pass sends hidden states to experts of other ranks: fp8 = e4m3 with a scale for "
           "every 128 features; none = uncompressed. Results and gradients are not compressed");
  f.integer("node", node, "ranks",
            "number of neighbouring ranks of a node: a forward pass sends a token to each node once, and passes it on "
            "there; at least 2, a divisor of the ranks that hold different experts; 0 = straight to each rank",
            0, 65536);
}

std::vector<comm::Mesh::Axis> expert_axes(const ExpertConfig& config) {
  if (config.size == 1) return {};
  return {comm::Mesh::batch("expert", static_cast<int>(config.size))};
}

void check_experts(int64_t count, const ExpertConfig& config) {
  require(count > 0 || config.size == 1, "parallel", "expert needs a mixture of experts: got expert.size ", config.size,
          " for a dense model; set model.experts.count, or leave parallel.expert out");
  const int64_t below = count / config.size * config.size, above = below + config.size;
  require(count % config.size == 0, "experts", "count must divide by parallel.expert.size: got ", count, " experts on ",
          config.size, " ranks; the nearest ", below > 0 ? concat("are ", below, " and ") : "is ", above);
}

void check_expert_tensor(const ExpertConfig& config, const TensorConfig& tensor) {
  require(!config.splits() || tensor.mode == Mode1d::name, "parallel",
          "expert.tensor = \"split\" needs tensor.mode 1d, because the panels of other modes have equal rows: got ",
          tensor.mode, "; set expert.tensor = \"deal\"");
}

void check_expert_node(const ExpertConfig& config, const TensorConfig& tensor) {
  const int64_t node = config.node, ranks = config.size * (config.splits() ? 1 : tensor.size);
  if (node == 0) return;
  require(ranks > 1, "parallel", "expert.node needs several ranks that hold different experts: got node ", node,
          " for 1 rank; leave it out");
  int64_t below = 0, above = 0;  // the nearest divisors of `ranks`
  for (int64_t d = 2; d <= ranks; ++d) {
    if (ranks % d != 0) continue;
    if (d <= node) below = d;
    if (d >= node && above == 0) above = d;
  }
  const bool has_both = below > 0 && above > 0;
  require(below == node, "parallel",
          "expert.node must be at least 2 and divide the ranks that hold different experts: got ", node, " for ", ranks,
          " ranks; the nearest ",
          has_both ? concat("are ", below, " and ", above) : concat("is ", below > 0 ? below : above));
}

}  // namespace colossal::parallel
