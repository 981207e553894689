#include "colossal/noise/flow_times.h"

#include <cmath>
#include <numbers>

#include "colossal/base/error.h"
#include "colossal/noise/names.h"

namespace colossal::noise {
namespace {

struct FlowTimesRow {
  const char* name;
  double (*time)(double uniform, double normal);
};

const std::vector<FlowTimesRow>& flow_times_rows() {
  static const std::vector<FlowTimesRow> rows{
      {"uniform", [](double uniform, double) { return uniform; }},
      {"logit-normal", [](double, double normal) { return logit_normal_time(normal); }},
      {"mode", [](double uniform, double) { return mode_time(uniform); }}};
  return rows;
}

/// A straight line through (256, low) and (4096, high).
double by_tokens(int64_t tokens, double low, double high) {
  return low + (high - low) * static_cast<double>(tokens - 256) / (4096 - 256);
}

constexpr const char* kTrailing = "trailing";

struct ShiftRule {
  const char* name;
  double (*shift)(const DrawnSize& size);
  const char* spacing;
};

const std::vector<ShiftRule>& shift_rules() {
  static const std::vector<ShiftRule> rows{
      {"", [](const DrawnSize&) { return 1.0; }, ""},
      {"sd3", [](const DrawnSize&) { return 3.0; }, ""},
      {"flux-schnell", [](const DrawnSize&) { return 1.0; }, kTrailing},
      {"flux", [](const DrawnSize& size) { return std::exp(by_tokens(size.tokens, 0.5, 1.15)); }, kTrailing},
      {"open-sora-1",
       [](const DrawnSize& size) { return std::sqrt(size.pixels / (512.0 * 512) * static_cast<double>(size.frames)); },
       kTrailing},
      {"open-sora-2",
       [](const DrawnSize& size) { return by_tokens(size.tokens, 1, 3) * std::sqrt(static_cast<double>(size.frames)); },
       kTrailing}};
  return rows;
}

}  // namespace

std::vector<std::string> flow_times_names() { return names_of(flow_times_rows()); }

void check_flow_options(const FlowOptions& options, Target target) {
  named(flow_times_rows(), options.times, "diffusion", "times");
  require(options.shift > 0 && std::isfinite(options.shift), "diffusion", "shift must be a positive number: got ",
          options.shift);
  const FlowOptions defaults;
  require(target == Target::Flow || (options.times == defaults.times && options.shift == defaults.shift), "diffusion",
          "times and shift need target = \"flow\": got times = \"", options.times, "\" and shift = ", options.shift,
          " with target = \"", name_of(target), "\"; remove them, or set target = \"flow\"");
}

double flow_time(const FlowOptions& options, double uniform, double normal) {
  const double t = named(flow_times_rows(), options.times, "diffusion", "times").time(uniform, normal);
  return shifted(t, options.shift);
}

double logit_normal_time(double normal, double mean, double deviation) {
  return 1 / (1 + std::exp(-(mean + deviation * normal)));
}

double mode_time(double uniform, double scale) {
  return 1 - uniform - scale * (std::pow(std::cos(std::numbers::pi * uniform / 2), 2) - 1 + uniform);
}

double shifted(double t, double shift) { return shift * t / (1 + (shift - 1) * t); }

double automatic_shift(const std::string& rule, const DrawnSize& size) {
  return named(shift_rules(), rule, "diffusion", "the rule of a shift").shift(size);
}

std::string automatic_spacing(const std::string& rule) {
  return named(shift_rules(), rule, "diffusion", "the rule of a shift").spacing;
}

}  // namespace colossal::noise
