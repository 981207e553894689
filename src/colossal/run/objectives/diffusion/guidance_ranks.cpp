#include "colossal/run/objectives/diffusion/guidance_ranks.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::run {

std::vector<comm::Mesh::Axis> axes_with_guidance(const distributed::ParallelConfig& layout, int64_t guidance) {
  std::vector<comm::Mesh::Axis> axes = layout.axes();
  axes.insert(axes.begin(), {kGuidanceAxis, static_cast<int>(guidance)});
  return axes;
}

void check_guidance_ranks(int64_t ranks, double guidance) {
  require(
      ranks == 1 || guidance != 1, "draw",
      "parallel.guidance must be 1 for one pass a step, without guidance or by a model that is told its weight: got ",
      ranks, "; leave parallel.guidance out");
}

at::Tensor gathered_halves(const at::Tensor& own, comm::Group& halves) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes[0] *= halves.size();
  at::Tensor all = at::empty(sizes, own.options());
  halves.all_gather(all, own.contiguous()).wait();
  return all;
}

int64_t elements_of_halves(int64_t n, int64_t elements) { return 2 * n * elements; }

}  // namespace colossal::run
