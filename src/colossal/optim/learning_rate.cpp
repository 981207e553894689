#include "colossal/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/optim/config.h"
#include "colossal/optim/unused_keys.h"

namespace colossal::optim {
namespace {

constexpr double kCycleStart = 1.0 / 25;  // first rate of one-cycle, as a fraction of the peak

/// A step after the warm-up, as input of a schedule.
struct Moment {
  double step, steps, warmup;
  double last;      ///< final_learning_rate
  double progress;  ///< 0 at the end of the warm-up, 1 at the last step
};

struct ScheduleRow {
  const char *name, *description;
  double (*factor)(const ScheduleConfig&, const Moment&);  ///< returns the rate as a fraction of the peak
  std::vector<std::string> keys;                           ///< keys of ScheduleConfig that it uses
};

double down(const Moment& at, double share_left) { return at.last + (1 - at.last) * share_left; }

/// Half a cosine: 1 at x = 0, 0 at x = 1.
double half_cosine(double x) { return 0.5 * (1 + std::cos(std::numbers::pi * x)); }

double multi_step(const ScheduleConfig& c, const Moment& at) {
  const auto passed =
      std::count_if(c.milestones.begin(), c.milestones.end(), [&](double m) { return m * at.steps < at.step; });
  return std::pow(c.factor, static_cast<double>(passed));
}

double one_cycle(const ScheduleConfig& c, const Moment& at) {
  if (at.progress <= c.rise) return kCycleStart + (1 - kCycleStart) * (1 - half_cosine(at.progress / c.rise));
  return down(at, half_cosine((at.progress - c.rise) / (1 - c.rise)));
}

double stable_decay(const ScheduleConfig& c, const Moment& at) {
  return down(at, std::min(1.0, (at.steps - at.step) / std::max(1.0, c.decay * at.steps)));
}

const std::vector<ScheduleRow>& schedule_rows() {
  using C = ScheduleConfig;
  static const std::vector<ScheduleRow> rows{
      {"constant", "the peak to the end", [](const C&, const Moment&) { return 1.0; }, {}},
      {"linear",
       "a straight line to the end",
       [](const C&, const Moment& at) { return down(at, 1 - at.progress); },
       {}},
      {"cosine",
       "half a cosine to the end",
       [](const C&, const Moment& at) { return down(at, half_cosine(at.progress)); },
       {}},
      {"polynomial",
       "(1 - progress)^power",
       [](const C& c, const Moment& at) { return down(at, std::pow(1 - at.progress, c.power)); },
       {"power"}},
      {"multi-step", "times factor at each milestone", multi_step, {"milestones", "factor"}},
      {"one-cycle", "from 1/25 up to the peak, then down", one_cycle, {"rise"}},
      {"inverse-square-root",
       "sqrt(warmup_steps / step)",
       [](const C&, const Moment& at) { return std::sqrt(std::max(1.0, at.warmup) / at.step); },
       {}},
      {"warmup-stable-decay", "the peak, then a line down", stable_decay, {"decay"}},
  };
  return rows;
}

const ScheduleRow& row_of(const ScheduleConfig& config) {
  for (const ScheduleRow& row : schedule_rows())
    if (config.name == row.name) return row;
  throw Error("optimizer", concat("unknown schedule ", config.name));
}

void check_milestones(const ScheduleConfig& c, double warmup) {
  const std::string text = join(c.milestones);
  const bool rises = std::adjacent_find(c.milestones.begin(), c.milestones.end(),
                                        [](double a, double b) { return a >= b; }) == c.milestones.end();
  require(!c.milestones.empty() && rises, "optimizer", "schedule.milestones must rise: got [", text,
          "]; try [0.5, 0.75]");
  require(c.milestones.front() >= warmup && c.milestones.back() < 1, "optimizer",
          "schedule.milestones, fractions of training.steps, must be after the warm-up and before the end: got [", text,
          "]; from ", warmup, " to less than 1");
}

}  // namespace

void ScheduleConfig::fields(Fields& f) {
  std::vector<std::string> names;
  for (const ScheduleRow& row : schedule_rows()) names.push_back(row.name);
  f.choice("name", name, names, "learning-rate schedule after the warm-up; `colossal schedule-lr` draws it");
  f.number("power", power, "", "polynomial: exponent of the remaining fraction of steps", 0, 100);
  f.numbers("milestones", milestones, "fractions of training.steps",
            "multi-step: positions at which the rate drops, ascending", 0, 1);
  f.number("factor", factor, "", "multi-step: factor of the rate at each milestone", 0, 1);
  f.number("rise", rise, "fraction of the steps after the warm-up", "one-cycle: length of the rise", 0.001, 0.999);
  f.number("decay", decay, "fraction of training.steps", "warmup-stable-decay: length of the final decay", 0, 1);
}

std::vector<ScheduleName> learning_rate_schedules() {
  std::vector<ScheduleName> names;
  for (const ScheduleRow& row : schedule_rows()) names.push_back({row.name, row.description});
  return names;
}

double peak_learning_rate(const OptimizerConfig& c, int64_t batch) {
  if (c.learning_rate_scaling == "none") return c.learning_rate;
  const double ratio = static_cast<double>(batch) / static_cast<double>(c.reference_batch);
  return c.learning_rate * (c.learning_rate_scaling == "linear" ? ratio : std::sqrt(ratio));
}

double learning_rate(const OptimizerConfig& c, int64_t step, int64_t steps, int64_t batch) {
  const int64_t now = std::max(step, c.warmup_steps);
  const double span = std::max<double>(1, static_cast<double>(steps - c.warmup_steps));
  const Moment at{static_cast<double>(now), static_cast<double>(steps), static_cast<double>(c.warmup_steps),
                  c.final_learning_rate, std::clamp(static_cast<double>(now - c.warmup_steps) / span, 0.0, 1.0)};
  const double rate = peak_learning_rate(c, batch) * row_of(c.schedule).factor(c.schedule, at);
  return step < now ? rate * static_cast<double>(step) / at.warmup : rate;
}

void check_learning_rate(const OptimizerConfig& c, int64_t steps, int64_t batch) {
  require(c.warmup_steps <= steps, "optimizer", "warmup_steps must not exceed training.steps: got ", c.warmup_steps,
          " of ", steps, "; at most ", steps);
  require(c.learning_rate_scaling == "none" || c.reference_batch > 0, "optimizer", "learning_rate_scaling ",
          c.learning_rate_scaling, " needs reference_batch, the batch_size for which learning_rate was tuned: got ",
          c.reference_batch, "; ", batch, " keeps the rate");
  require(c.learning_rate_scaling != "none" || c.reference_batch == 0, "optimizer",
          "reference_batch needs learning_rate_scaling: got ", c.reference_batch,
          "; set learning_rate_scaling = \"linear\" or \"square-root\", or leave it out");
  refuse_unused_keys(concat("schedule ", c.schedule.name), describe_config(c.schedule),
                     describe_config(ScheduleConfig()), {"name"}, row_of(c.schedule).keys);
  const double warmup = static_cast<double>(c.warmup_steps) / static_cast<double>(steps);
  if (c.schedule.name == "multi-step") check_milestones(c.schedule, warmup);
  require(c.schedule.name != "warmup-stable-decay" || warmup + c.schedule.decay <= 1 + 1e-9, "optimizer",
          "the warm-up and schedule.decay must fit into the run: got ", warmup, " + ", c.schedule.decay,
          " of training.steps; at most decay = ", 1 - warmup);
}

}  // namespace colossal::optim
