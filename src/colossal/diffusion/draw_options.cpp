#include "colossal/diffusion/draw_options.h"

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/diffusion/run_sampler.h"

namespace colossal::diffusion {

constexpr int64_t kMaxPictures = 1 << 20;

void DrawOptions::fields(Fields& f) {
  f.text("class", drawn, "name or number of the class to draw");
  f.integer("count", count, "pictures", "number of pictures; picture k, from 0, has the seed + k", 1, kMaxPictures);
  f.integer("seed", seed, "", "seed of the noise");
  f.integer("steps", steps, "levels", "noise levels that the sampler visits", 1);
  f.text("sampler", sampler,
         "ddpm, ddim, pndm, euler, euler-ancestral, heun, dpm++2m, dpm++2m-sde, unipc or flow; "
         "default: flow for a flow, else ddim");
  f.text("spacing", spacing, "how the noise levels are spread: leading, trailing or linspace; default: the sampler's");
  f.flag("karras", karras, "space the deviations of the noise as in 2206.00364");
  f.number("eta", eta, "", "ddim: share of the noise of ddpm that each step adds", 0, 1);
  f.number("guidance", guidance, "", "weight of classifier-free guidance; 1 = none, 0 = that of the run", 0);
  f.number("rescale", rescale, "", "share of the deviation that guidance changed which is given back", 0, 1);
}

void DrawOptions::check(const std::string& where) const {
  const auto in = [&](bool fits, const char* name, const char* rule, double value) {
    require(fits, "draw", where, name, " must be ", rule, ": got ", value);
  };
  in(count >= 1 && count <= kMaxPictures, "count", "between 1 and 2^20", static_cast<double>(count));
  in(steps >= 1, "steps", "at least 1", static_cast<double>(steps));
  in(eta >= 0 && eta <= 1, "eta", "between 0 and 1", eta);
  in(guidance >= 0, "guidance", "at least 0", guidance);
  in(rescale >= 0 && rescale <= 1, "rescale", "between 0 and 1", rescale);
  require(!drawn.empty(), "draw", where, "the class to draw must be given: name it with --class");
}

noise::SamplerPlan DrawOptions::plan(const run::DiffusionObjective& objective) const {
  const bool predicts = objective.sizes().outputs > objective.sizes().channels;
  return plan_of(objective.keys(), {.sampler = sampler,
                                    .spacing = spacing,
                                    .steps = steps,
                                    .karras = karras,
                                    .eta = eta,
                                    .variance = predicts ? noise::Variance::Learned : noise::Variance::Small});
}

}  // namespace colossal::diffusion
