#include "colossal/run/low_rank_keys.h"

#include <cmath>

namespace colossal::run {

void LowRankKeys::fields(Fields& f) {
  f.choice("kind", kind, {"none", "lora", "dora"},
           "adapters of linear layers: none, low-rank (LoRA), or low-rank with trained magnitudes (DoRA)");
  f.integer("rank", rank, "", "rows of A and columns of B: x W^T + s (x A^T) B^T", 1, 1 << 16);
  f.number("alpha", alpha, "", "s = alpha / rank, or as `scale` says", 0);
  f.choice("scale", scale, {"plain", "root"}, "s = alpha / rank, or alpha / sqrt(rank) (rsLoRA)");
  f.number("dropout", dropout, "", "probability with which an element of x is dropped on its way to A", 0, 0.999);
  f.texts(
      "targets", targets,
      "modules of the Hugging Face folder that have adapters: names (q_proj), names with a path, patterns with `*`, "
      "or all-linear, every linear layer but the head");
  f.texts("trained", trained, "modules that are trained whole and saved with the adapters, such as lm_head");
}

double LowRankKeys::factor() const {
  return alpha / (scale == "root" ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

}  // namespace colossal::run
