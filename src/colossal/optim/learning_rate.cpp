#include "colossal/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "colossal/base/error.h"
#include "colossal/optim/optimizer.h"

namespace colossal::optim {
namespace {

struct Row {
  const char* name;
  double (*share)(double progress);  ///< of the way from final to peak that is left, for progress in [0, 1]
};

const Row kRows[] = {
    {"constant", [](double) { return 1.0; }},
    {"linear", [](double progress) { return 1 - progress; }},
    {"cosine", [](double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }},
};

}  // namespace

std::vector<std::string> learning_rate_schedules() {
  std::vector<std::string> names;
  for (const Row& row : kRows) names.push_back(row.name);
  return names;
}

double learning_rate(const OptimizerConfig& c, int64_t step, int64_t steps) {
  if (step <= c.warmup_steps) return c.learning_rate * static_cast<double>(step) / static_cast<double>(c.warmup_steps);
  const double span = std::max<double>(1, static_cast<double>(steps - c.warmup_steps));
  const double progress = std::clamp(static_cast<double>(step - c.warmup_steps) / span, 0.0, 1.0);
  for (const Row& row : kRows)
    if (c.schedule == row.name) return c.learning_rate * (c.final_learning_rate + (1 - c.final_learning_rate) * row.share(progress));
  throw Error("optimizer", concat("unknown schedule ", c.schedule));
}

}  // namespace colossal::optim
