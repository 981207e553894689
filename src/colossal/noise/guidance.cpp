#include "colossal/noise/guidance.h"

namespace colossal::noise {

GuidanceFactors guidance_factors(double guidance) { return {guidance, 1 - guidance}; }

double rescale_factor(double conditional_deviation, double guided_deviation, double rescale) {
  return rescale * conditional_deviation / guided_deviation + 1 - rescale;
}

}  // namespace colossal::noise
