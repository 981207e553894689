#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

void ReconstructionKeys::fields(Fields& f) {
  f.number("l1", l1, "", "weight of the mean distance of pixels, in [-1, 1]", 0);
  f.number("kl", kl, "",
           "weight of the divergence of latents from standard normal numbers; 0 = latents may spread freely", 0);
}

// The objective diffusion has the same keys.
void ReconstructionDataKeys::fields(Fields& f) {
  f.integers("size", size, "pixels", "width and height of pictures; empty = those of the model", 1, 65535);
  f.flag("mirror", mirror, "show every second picture mirrored, on average");
}

}  // namespace colossal::run
