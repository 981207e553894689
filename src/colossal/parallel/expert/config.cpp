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

}  // namespace colossal::parallel
