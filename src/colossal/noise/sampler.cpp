#include "colossal/noise/sampler.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/noise/names.h"
#include "colossal/noise/sampler_route.h"

namespace colossal::noise {
namespace {

struct SamplerRow {
  const char* name;
  const char* spacing;
  bool has_sigmas;  // and so may have Karras'
  GridRules rules;
  std::vector<SamplerStep> (*steps)(const Route&);
};

const std::vector<SamplerRow>& sampler_rows() {
  static const std::vector<SamplerRow> rows{
      {"ddpm", "leading", false, {.grid = Grid::Table}, ddpm_steps},
      {"ddim", "leading", false, {.grid = Grid::Table, .strides = true}, first_order_steps},
      {"pndm", "leading", false, {.grid = Grid::Table, .strides = true}, pndm_steps},
      {"euler", "linspace", true, {.grid = Grid::Sigma, .may_stop = true}, first_order_steps},
      {"euler-ancestral", "linspace", true, {.grid = Grid::Sigma}, euler_ancestral_steps},
      {"heun", "linspace", true, {.grid = Grid::Sigma}, heun_steps},
      {"dpm++2m", "linspace", true, {.grid = Grid::Inner, .truncates = true, .may_stop = true}, dpm_steps},
      {"dpm++2m-sde", "linspace", true, {.grid = Grid::Inner, .truncates = true, .may_stop = true}, dpm_sde_steps},
      {"unipc", "linspace", true, {.grid = Grid::Inner, .may_stop = true}, unipc_steps},
      {"flow", "linspace", false, {.grid = Grid::Sigma}, first_order_steps},
  };
  return rows;
}

const SamplerRow& sampler_row(const std::string& name) { return named(sampler_rows(), name, "draw", "sampler"); }

void check_target_of(const SamplerRow& row, const SamplerOptions& o) {
  const bool is_flow = o.target == Target::Flow;
  require((o.sampler == "flow") == is_flow, "draw", "sampler flow and target flow need each other: got sampler ",
          row.name, " for a model with target ", name_of(o.target), "; set sampler = \"", is_flow ? "flow" : "ddim",
          "\"");
  require(o.shift > 0 && std::isfinite(o.shift), "draw", "shift must be a positive number: got ", o.shift);
  require(is_flow || o.shift == 1, "draw", "shift needs a model with target flow: got ", o.shift, " with target ",
          name_of(o.target), "; set shift = 1");
  require(o.spacing.empty() || o.target != Target::Edm, "draw", "spacing needs a table of noise levels, which target ",
          name_of(o.target), " does not have: got ", o.spacing, "; leave it out");
  require(!is_flow || o.spacing.empty() || spacing_named(o.spacing) != Spacing::Leading, "draw",
          "spacing of a flow must be trailing or linspace: got ", o.spacing, "; leave it out");
}

void check(const SamplerRow& row, const NoiseLevels& levels, const SamplerOptions& o) {
  check_target_of(row, o);
  if (o.target != Target::Edm && o.target != Target::Flow) check_target(o.target, levels.options());
  require(o.steps >= 1 && o.steps <= levels.steps(), "draw", "steps must be between 1 and ", levels.steps(),
          ", the number of noise levels: got ", o.steps);
  std::vector<std::string> with_sigmas;
  for (const SamplerRow& other : sampler_rows())
    if (other.has_sigmas) with_sigmas.emplace_back(other.name);
  require(!o.karras || row.has_sigmas, "draw", "karras needs a sampler with sigmas, one of ", join(with_sigmas),
          ": got ", row.name);
  require(o.eta >= 0 && o.eta <= 1, "draw", "eta must be between 0 and 1: got ", o.eta);
  require(o.eta == 0 || o.sampler == "ddim", "draw", "eta needs the sampler ddim: got ", o.eta, " with ", row.name,
          "; set eta = 0");
  require(o.clip >= 0, "draw", "clip must not be negative: got ", o.clip, "; 0 turns it off");
  require(o.strength > 0 && o.strength <= 1, "draw", "strength must be in (0, 1]: got ", o.strength);
}

/// Returns how many earlier estimates the steps read.
size_t history_of(const std::vector<SamplerStep>& steps) {
  size_t history = 0;
  const auto see = [&](const Combination& sum) {
    for (size_t i = 0; i < sum.estimates.size(); ++i)
      if (sum.estimates[i] != 0) history = std::max(history, i);
  };
  for (const SamplerStep& step : steps) {
    see(step.next);
    if (step.next_base) see(*step.next_base);
  }
  return history;
}

}  // namespace

std::vector<std::string> sampler_names() { return names_of(sampler_rows()); }

std::string default_spacing(const std::string& sampler) { return sampler_row(sampler).spacing; }

bool has_sigmas(const std::string& sampler) { return sampler_row(sampler).has_sigmas; }

SamplerPlan plan_sampler(const NoiseLevels& levels, const SamplerOptions& options) {
  const SamplerRow& row = sampler_row(options.sampler);
  check(row, levels, options);
  SamplerOptions complete = options;
  if (complete.spacing.empty()) complete.spacing = row.spacing;
  const Route route = make_route(levels, complete, row.rules);
  SamplerPlan plan{.start_scale = route.start_scale, .steps = row.steps(route)};
  plan.history = history_of(plan.steps);
  return plan;
}

}  // namespace colossal::noise
