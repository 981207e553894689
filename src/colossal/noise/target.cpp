#include "colossal/noise/target.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/noise/names.h"

namespace colossal::noise {
namespace {

constexpr double kEdmData = 0.5;  // deviation of the pictures

struct TargetRow {
  const char* name;
  Target target;
};

const std::vector<TargetRow>& target_rows() {
  static const std::vector<TargetRow> rows{{"epsilon", Target::Epsilon},
                                           {"v", Target::V},
                                           {"sample", Target::Sample},
                                           {"flow", Target::Flow},
                                           {"edm", Target::Edm}};
  return rows;
}

}  // namespace

std::vector<std::string> target_names() { return names_of(target_rows()); }

std::string name_of(Target target) {
  for (const TargetRow& row : target_rows())
    if (row.target == target) return row.name;
  return "";
}

Target target_named(const std::string& name) { return named(target_rows(), name, "diffusion", "target").target; }

void check_target(Target target, const NoiseOptions& options) {
  require(
      target != Target::Epsilon || !options.zero_terminal_snr, "diffusion",
      "target must not be epsilon with zero_terminal_snr = true, because the last level has no signal: got epsilon; "
      "set target = \"v\"");
}

Level table_level(const NoiseLevels& levels, int64_t t) { return {static_cast<double>(t), levels.mix(t)}; }

Level flow_level(double t, int64_t steps) { return {static_cast<double>(steps) * t, {1 - t, t}}; }

Level edm_level(double sigma) { return {edm_factors(sigma).noise, {1, sigma}}; }

EdmFactors edm_factors(double sigma) {
  const double squares = sigma * sigma + kEdmData * kEdmData, root = std::sqrt(squares);
  return {.skip = kEdmData * kEdmData / squares,
          .out = sigma * kEdmData / root,
          .in = 1 / root,
          .noise = std::log(sigma) / 4,
          .weight = squares / std::pow(sigma * kEdmData, 2)};
}

double edm_training_sigma(double normal) { return std::exp(-1.2 + 1.2 * normal); }

double input_scale(Target target, const Mix& mix) {
  switch (target) {
    case Target::Flow:
      return 1;
    case Target::Edm:
      return edm_factors(mix.noise / mix.signal).in / mix.signal;
    default:
      return 1 / std::hypot(mix.signal, mix.noise);
  }
}

Mix training_target(Target target, const Mix& mix) {
  const double scale = 1 / std::hypot(mix.signal, mix.noise);
  switch (target) {
    case Target::Epsilon:
      return {0, 1};
    case Target::V:
      return {-mix.noise * scale, mix.signal * scale};
    case Target::Sample:
      return {1, 0};
    case Target::Flow:
      return {-1, 1};
    case Target::Edm:
      break;
  }
  // (x0 - c_skip x) / c_out
  const double sigma = mix.noise / mix.signal, in = edm_factors(sigma).in;
  return {sigma / kEdmData * in, -kEdmData * in};
}

Reading read_sample(Target target, const Mix& mix) {
  const double scale = 1 / std::hypot(mix.signal, mix.noise);
  switch (target) {
    case Target::Epsilon:
      return {1 / mix.signal, -mix.noise / mix.signal};
    case Target::V:
      return {mix.signal * scale * scale, -mix.noise * scale};
    case Target::Sample:
      return {0, 1};
    case Target::Flow:
      return {1, -mix.noise};
    case Target::Edm:
      break;
  }
  const EdmFactors c = edm_factors(mix.noise / mix.signal);
  return {c.skip / mix.signal, c.out};
}

Reading read_noise(Target target, const Mix& mix) {
  const double scale = 1 / std::hypot(mix.signal, mix.noise);
  switch (target) {
    case Target::Epsilon:
      return {0, 1};
    case Target::V:
      return {mix.noise * scale * scale, mix.signal * scale};
    case Target::Flow:
      return {1, mix.signal};
    case Target::Sample:
      return {1 / mix.noise, -mix.signal / mix.noise};
    case Target::Edm:
      break;
  }
  const double sigma = mix.noise / mix.signal, in = edm_factors(sigma).in;
  return {sigma * in * in / mix.signal, -kEdmData * in};
}

}  // namespace colossal::noise
