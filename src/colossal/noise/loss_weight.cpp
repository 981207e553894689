#include "colossal/noise/loss_weight.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::noise {

double min_snr_weight(Target target, double snr, double gamma) {
  require(gamma >= 0, "diffusion", "min_snr must not be negative: got ", gamma, "; 0 turns it off");
  if (gamma == 0) return 1;
  switch (target) {
    case Target::Epsilon:
      return std::min(1.0, gamma / snr);  // not min(snr, gamma) / snr: snr may be 0
    case Target::V:
      return std::min(snr, gamma) / (snr + 1);
    case Target::Sample:
      return std::min(snr, gamma);
    default:
      break;
  }
  throw Error("diffusion",
              concat("min_snr needs target epsilon, v or sample: got target ", name_of(target), "; set min_snr = 0"));
}

}  // namespace colossal::noise
