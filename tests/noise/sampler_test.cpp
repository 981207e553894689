// Plans of samplers, applied to four numbers. The golden values were computed with diffusers 0.42.1, whose float32
// constants were made float64.
#include "colossal/noise/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "noise/golden.h"

namespace colossal::noise::sampler_test {
namespace {

using golden::expect_digits;
using golden::model;
using golden::picture;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Numbers = std::array<double, 4>;

const NoiseLevels kLevels{NoiseOptions{}};
const NoiseLevels kZeroSnr{{.zero_terminal_snr = true}};

/// A drawing of four numbers by a plan. Fresh noise is cos(.7 i + j) in evaluation j.
struct Drawing {
  const SamplerPlan& plan;
  Numbers sample, base, output{};
  std::deque<Numbers> estimates{};  // the newest first
  int evaluation = 0;

  double sum(const Combination& c, size_t i) const {
    double value = c.sample * sample[i] + c.base * base[i] + c.output * output[i] + c.noise * fresh(i);
    for (size_t k = 0; k < estimates.size(); ++k) value += c.estimates[k] * estimates[k][i];
    return value;
  }
  double fresh(size_t i) const { return std::cos(0.7 * static_cast<double>(i) + evaluation); }

  void take(const SamplerStep& step) {
    Numbers estimate, next, next_base = base;
    for (size_t i = 0; i < 4; ++i) {
      output[i] = model(step.input_scale * sample[i], step.time);
      estimate[i] = step.estimate.sample * sample[i] + step.estimate.output * output[i];
      if (step.clip > 0) estimate[i] = std::clamp(estimate[i], -step.clip, step.clip);
    }
    estimates.push_front(estimate);
    for (size_t i = 0; i < 4; ++i) {
      next[i] = sum(step.next, i);
      if (step.next_base) next_base[i] = sum(*step.next_base, i);
      if (step.learned) {
        const double share = (std::cos(0.9 * static_cast<double>(i)) + 1) / 2;
        next[i] += std::exp((share * step.learned->large + (1 - share) * step.learned->small) / 2) * fresh(i);
      }
    }
    sample = next;
    base = next_base;
    if (!step.keeps_estimate) estimates.pop_front();
    if (estimates.size() > plan.history) estimates.pop_back();
    ++evaluation;
  }
};

/// Draws from noise alone, or from a picture and the noise cos(.4 i) for a strength below 1.
Numbers draw(const NoiseLevels& levels, const SamplerOptions& options) {
  const SamplerPlan plan = plan_sampler(levels, options);
  Numbers start;
  for (int i = 0; i < 4; ++i) {
    const Mix& level = plan.steps.front().level;
    start[static_cast<size_t>(i)] = options.strength < 1 ? level.signal * picture(i) + level.noise * std::cos(0.4 * i)
                                                         : plan.start_scale * picture(i);
  }
  Drawing drawing{plan, start, start};
  for (const SamplerStep& step : plan.steps) drawing.take(step);
  return drawing.sample;
}

/// Checks the first and last number and the sum of all.
void expect_drawn(const Numbers& drawn, double first, double last, double sum) {
  expect_digits(drawn[0], first);
  expect_digits(drawn[3], last);
  expect_digits(drawn[0] + drawn[1] + drawn[2] + drawn[3], sum);
}

std::vector<double> times_of(const SamplerPlan& plan) {
  std::vector<double> times;
  for (const SamplerStep& step : plan.steps) times.push_back(step.time);
  return times;
}

std::string refusal(const SamplerOptions& options, const NoiseLevels& levels = kLevels) {
  try {
    plan_sampler(levels, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The options of the folder of Stable Diffusion 1.5.
SamplerOptions folder(const std::string& sampler, const std::string& spacing = "leading", int64_t steps = 5) {
  return {.sampler = sampler, .spacing = spacing, .steps = steps, .steps_offset = 1, .set_alpha_to_one = false};
}

SamplerOptions with(SamplerOptions options, double SamplerOptions::* member, double value) {
  options.*member = value;
  return options;
}

SamplerOptions karras(SamplerOptions options) {
  options.karras = true;
  return options;
}

SamplerOptions for_target(SamplerOptions options, Target target) {
  options.target = target;
  return options;
}

TEST(Sampler, DrawsAsDdim) {
  EXPECT_THAT(times_of(plan_sampler(kLevels, folder("ddim"))), ElementsAre(801, 601, 401, 201, 1));
  expect_drawn(draw(kLevels, folder("ddim")), -0.4814133829176, 0.8688159140251, 0.9429045148799);
  expect_drawn(draw(kLevels, with(folder("ddim"), &SamplerOptions::eta, 0.5)), -0.005446242991514, 0.08327570969798,
               0.214633937716);
  expect_drawn(draw(kLevels, with(folder("ddim"), &SamplerOptions::clip, 1)), -0.4479393602571, 0.8688159140251,
               0.9763785375405);
  const SamplerOptions zero{.sampler = "ddim", .spacing = "trailing", .steps = 5, .target = Target::V};
  expect_drawn(draw(kZeroSnr, zero), -0.1459108251409, 0.07043850011642, -0.1240098151713);
}

TEST(Sampler, DrawsAsDdpm) {
  SamplerOptions options{.sampler = "ddpm", .steps = 5, .variance = Variance::Large};
  expect_drawn(draw(kLevels, options), -0.2663068040193, -1.002014941501, -3.121267003993);
  EXPECT_EQ(plan_sampler(kLevels, options).steps.back().next.noise, 0);  // at time 0
  expect_drawn(draw(kLevels, with(folder("ddpm"), &SamplerOptions::clip, 1)), 0.1649330863853, -0.92314247584,
               -1.682562491942);
  options = {.sampler = "ddpm", .spacing = "trailing", .steps = 5, .variance = Variance::Learned, .target = Target::V};
  const NoiseLevels linear({.schedule = "linear", .zero_terminal_snr = true});
  expect_drawn(draw(linear, options), -0.9981633072871, -0.1177715324319, -2.069449985549);
}

TEST(Sampler, DrawsAsPndm) {
  const SamplerPlan plan = plan_sampler(kLevels, folder("pndm"));
  EXPECT_THAT(times_of(plan), ElementsAre(801, 601, 601, 401, 201, 1));
  EXPECT_EQ(plan.history, 3u);
  expect_drawn(draw(kLevels, folder("pndm")), -0.2963705457437, 0.8705761622914, 1.293692559278);
  const SamplerOptions trailing{.sampler = "pndm", .spacing = "trailing", .steps = 5, .target = Target::V};
  expect_drawn(draw(kLevels, trailing), -0.1136206527391, 0.1413378714424, 0.08717600046135);
  expect_drawn(draw(kLevels, folder("pndm", "leading", 1)), 0.09805337715061, 0.8355055718266, 1.95892845974);
}

TEST(Sampler, DrawsAsEuler) {
  expect_digits(plan_sampler(kLevels, folder("euler")).start_scale, 5.230906508487);
  expect_digits(plan_sampler(kLevels, folder("euler", "trailing")).start_scale, 14.61464122933);
  expect_drawn(draw(kLevels, folder("euler")), -0.47749793106, 0.8535026474038, 0.9177149682163);
  expect_drawn(draw(kLevels, folder("euler", "trailing")), -1.29531305649, 1.216270531389, 0.1545994896758);
  expect_drawn(draw(kLevels, karras(folder("euler", "linspace"))), -1.500517358162, 1.27734613167, -0.1005068728517);
  const SamplerOptions stopped{.sampler = "euler", .steps = 7, .ends_at_sigma_min = true};
  expect_drawn(draw(kLevels, stopped), -1.229364113121, 1.228837380563, 0.3049851659262);
}

TEST(Sampler, DrawsAsEulerAncestral) {
  expect_drawn(draw(kLevels, folder("euler-ancestral", "trailing")), -0.6001575379391, -1.520164358268,
               -4.593670113431);
}

TEST(Sampler, DrawsAsHeun) {
  const SamplerPlan plan = plan_sampler(kLevels, folder("heun", "linspace"));
  EXPECT_THAT(times_of(plan), ElementsAre(999, 749.25, 749.25, 499.5, 499.5, 249.75, 249.75, 0, 0));
  expect_drawn(draw(kLevels, folder("heun", "linspace")), -0.4547829064965, 1.071084380385, 1.422568797536);
  SamplerOptions clipped = for_target(karras(folder("heun", "linspace")), Target::V);
  clipped.clip = 1;
  expect_drawn(draw(kLevels, clipped), -0.06768749557558, 0.4926632161563, 0.9197134054114);
  clipped = {.sampler = "heun", .spacing = "trailing", .steps = 3, .clip = 0.2, .target = Target::V};
  expect_drawn(draw(kLevels, clipped), -0.1221051459696, 0.1367826461628, 0.06158574538481);
  clipped.ends_at_sigma_min = true;  // heun does not read it
  expect_drawn(draw(kLevels, clipped), -0.1221051459696, 0.1367826461628, 0.06158574538481);
}

TEST(Sampler, DrawsAsDpm) {
  const SamplerOptions linspace = folder("dpm++2m", "linspace");
  EXPECT_THAT(times_of(plan_sampler(kLevels, linspace)), ElementsAre(999, 799, 599, 400, 200));
  EXPECT_THAT(times_of(plan_sampler(kLevels, karras(linspace))), ElementsAre(999, 786, 427, 59, 0));
  expect_drawn(draw(kLevels, linspace), -0.9889302424479, 1.143399676729, 0.5744074768395);
  expect_drawn(draw(kLevels, karras(linspace)), -0.3720673521789, 1.013522336213, 1.455411682232);
  expect_drawn(draw(kLevels, folder("dpm++2m", "linspace", 20)), -0.8523377354618, 1.154938832906, 0.8551020402354);
  const NoiseLevels cosine({.schedule = "cosine"});
  const SamplerPlan plan = plan_sampler(cosine, karras(for_target(linspace, Target::Sample)));
  EXPECT_THAT(times_of(plan), ElementsAre(999, 998, 997, 936, 0));  // not rounded
  // Above noise level 0 the last step is of first order below 15 steps only.
  SamplerOptions stopped{.sampler = "dpm++2m", .steps = 5, .ends_at_sigma_min = true};
  expect_drawn(draw(kLevels, stopped), -0.9997270221973, 1.167588489038, 0.6055471420713);
  stopped.steps = 20;
  expect_drawn(draw(kLevels, stopped), -0.857381425003, 1.197903466159, 0.9369208182548);
}

TEST(Sampler, DrawsAsStochasticDpm) {
  expect_drawn(draw(kLevels, folder("dpm++2m-sde", "linspace")), -0.1597665267172, -2.084713840649, -5.155468526503);
  const SamplerOptions zero = for_target(karras(folder("dpm++2m-sde", "trailing", 20)), Target::V);
  expect_drawn(draw(kZeroSnr, zero), -0.7128672500902, 0.1377494779109, -1.410156051051);
}

TEST(Sampler, DrawsAsUnipc) {
  expect_drawn(draw(kLevels, folder("unipc", "linspace")), -0.9085012839253, 1.122018711919, 0.679828437567);
  const SamplerOptions zero = for_target(karras(folder("unipc", "trailing", 20)), Target::V);
  expect_drawn(draw(kZeroSnr, zero), -0.1108897111154, 0.3054043363618, 0.4408565969197);
  // Karras' deviations span the whole table here, for euler and heun the levels of the spacing.
  const SamplerOptions leading = for_target(karras({.sampler = "unipc", .spacing = "leading", .steps = 5}), Target::V);
  expect_drawn(draw(kLevels, leading), -0.06881147088644, 0.4053512330249, 0.7321113429333);
}

TEST(Sampler, DrawsAsFlow) {
  SamplerOptions options{.sampler = "flow", .steps = 4, .target = Target::Flow};
  expect_drawn(draw(kLevels, options), -0.1319542072104, 0.2972770418548, 0.3840836580793);
  options.shift = 3;  // applied twice, as diffusers does
  const std::vector<double> times{1, 0.8576923076923, 0.6021505376344, 0.008928571428571};
  const SamplerPlan plan = plan_sampler(kLevels, options);
  for (size_t i = 0; i < 4; ++i) {
    expect_digits(plan.steps[i].time, 1000 * times[i]);
    expect_digits(plan.steps[i].level.noise, times[i]);
  }
  expect_drawn(draw(kLevels, options), -0.1491170537777, 0.2716275116, 0.2974023380532);
  options.spacing = "trailing";  // of FLUX: 1, .75, .5, .25 shifted once
  const SamplerPlan trailing = plan_sampler(kLevels, options);
  for (size_t i = 0; i < 4; ++i) {
    const double t = 1 - 0.25 * static_cast<double>(i);
    expect_digits(trailing.steps[i].level.noise, 3 * t / (1 + 2 * t));
  }
}

TEST(Sampler, BeginsLaterForAPicture) {
  const auto most = [](const char* name) {
    return with({.sampler = name, .spacing = "linspace", .steps = 10}, &SamplerOptions::strength, 0.6);
  };
  EXPECT_THAT(times_of(plan_sampler(kLevels, most("dpm++2m"))), ElementsAre(599, 500, 400, 300, 200, 100));
  expect_drawn(draw(kLevels, most("dpm++2m")), 0.8329262050394, 0.5108526522352, 2.993222753063);
  expect_drawn(draw(kLevels, most("unipc")), 0.8343169927529, 0.5125248173573, 2.999081616515);
  const SamplerOptions heun = with(folder("heun", "leading", 10), &SamplerOptions::strength, 0.6);
  expect_drawn(draw(kLevels, heun), 0.7477486438955, 0.5912105315683, 2.948165786326);
  EXPECT_EQ(plan_sampler(kLevels, with(most("ddim"), &SamplerOptions::strength, 0.01)).steps.size(), 1u);
}

TEST(Sampler, EndsAtTheEstimateOfThePicture) {
  for (const std::string& name : sampler_names()) {
    SCOPED_TRACE(name);
    const bool is_flow = name == "flow";
    const SamplerPlan plan = plan_sampler(kLevels, {.sampler = name, .target = is_flow ? Target::Flow : Target::V});
    const SamplerStep& last = plan.steps.back();
    if (name == "pndm") continue;  // the mean of several outputs
    EXPECT_NEAR(last.next.estimates[0], 1, 1e-12);
    EXPECT_THAT(std::vector<double>(last.next.estimates.begin() + 1, last.next.estimates.end()),
                Each(::testing::DoubleNear(0, 1e-12)));
    EXPECT_NEAR(last.next.sample, 0, 1e-12);
    EXPECT_NEAR(last.next.noise, 0, 1e-9);
  }
}

TEST(Sampler, FollowsEdmInEitherScale) {
  // The ancestral steps of ddpm and of Euler are the same; one sample has unit variance, the other grows with sigma.
  const SamplerOptions options{.sampler = "ddpm", .steps = 20, .target = Target::Edm};
  SamplerOptions exploding = options;
  exploding.sampler = "euler-ancestral";
  const Numbers one = draw(kLevels, options), other = draw(kLevels, exploding);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(one[i], other[i], 1e-9);
  const SamplerPlan plan = plan_sampler(kLevels, exploding);
  expect_digits(plan.start_scale, std::hypot(80, 1));
  expect_digits(plan.steps.front().time, std::log(80) / 4);
  expect_digits(plan.steps.back().level.noise, 0.002);
  expect_drawn(draw(kLevels, {.sampler = "dpm++2m", .steps = 5, .target = Target::Edm}), 0.1794623454087,
               0.8052100179151, 2.047248414186);
}

TEST(Sampler, RefusesWhatHasNoEffect) {
  EXPECT_THAT(refusal({.sampler = "dpm2m"}), HasSubstr("did you mean `dpm++2m`?"));
  EXPECT_THAT(refusal({.spacing = "trail"}), HasSubstr("[draw] spacing must be one of leading, trailing, linspace"));
  EXPECT_THAT(refusal({.sampler = "ddim", .karras = true}),
              HasSubstr("karras needs a sampler with sigmas, one of euler"));
  EXPECT_THAT(refusal({.target = Target::Epsilon}, kZeroSnr), HasSubstr("set target = \"v\""));
  EXPECT_THAT(refusal({.sampler = "flow"}), HasSubstr("set sampler = \"ddim\""));
  EXPECT_THAT(refusal({.sampler = "euler", .target = Target::Flow}), HasSubstr("set sampler = \"flow\""));
  EXPECT_THAT(refusal({.shift = 3}), HasSubstr("shift needs a model with target flow"));
  EXPECT_THAT(refusal({.sampler = "flow", .spacing = "leading", .target = Target::Flow}), HasSubstr("leave it out"));
  EXPECT_THAT(refusal({.sampler = "euler", .eta = 0.5}), HasSubstr("eta needs the sampler ddim"));
  EXPECT_THAT(refusal({.eta = 2}), HasSubstr("eta must be between 0 and 1: got 2"));
  EXPECT_THAT(refusal({.clip = -1}), HasSubstr("clip"));
  EXPECT_THAT(refusal({.strength = 0}), HasSubstr("strength must be in (0, 1]: got 0"));
  EXPECT_THAT(refusal({.steps = 1001}), HasSubstr("steps must be between 1 and 1000"));
  EXPECT_THAT(refusal({.steps = 0}), HasSubstr("steps must be between 1 and 1000"));
}

TEST(Sampler, HasTheDefaultSpacingOfDiffusers) {
  EXPECT_EQ(default_spacing("ddim"), "leading");
  EXPECT_EQ(default_spacing("unipc"), "linspace");
  EXPECT_EQ(times_of(plan_sampler(kLevels, {.sampler = "euler", .steps = 3})), (std::vector<double>{999, 499.5, 0}));
}

}  // namespace
}  // namespace colossal::noise::sampler_test
