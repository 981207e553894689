#include "colossal/diffusion/step_traffic.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <atomic>

#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/unet_parts.h"
#include "colossal/noise/noise_levels.h"
#include "colossal/noise/sampler.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"

namespace colossal::diffusion {

int64_t step_traffic(const models::ModelShape& shape, const distributed::ParallelConfig& layout, int64_t guidance) {
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  const int64_t ranks = layout.tensor.size, of_picture = sizes.outputs * sizes.height * sizes.width;
  // An all_reduce of n elements over p ranks sends 2 (p - 1) n.
  const int64_t of_pass = 2 * (ranks - 1) * models::unet_elements_summed(shape.own.as<models::UnetSizes>());
  const int64_t of_halves = guidance > 1 ? ranks * run::elements_of_halves(1, of_picture) : 0;
  return layout.data * (guidance * of_pass + of_halves);
}

int64_t measured_step_traffic(const models::ModelShape& shape, const distributed::ParallelConfig& layout,
                              int64_t guidance) {
  const models::DenoiserSizes sizes = models::denoiser_of(shape);
  const noise::SamplerPlan plan = noise::plan_sampler(noise::NoiseLevels({}), {.steps = 1});
  const bool is_guided = guidance > 1;
  std::atomic<int64_t> sent = 0;
  comm::run_ranks(static_cast<int>(guidance * layout.ranks()), [&](comm::World& world) {
    at::set_num_threads(1);
    comm::Mesh mesh(world, run::axes_with_guidance(layout, guidance)), own = mesh.without({run::kGuidanceAxis});
    distributed::DistributedModel model(own, layout, shape, {}, {});
    const tensor::Batch caption = models::told_batch(at::zeros({1, /*tokens=*/4, sizes.text}));
    const Drawing drawing{.told = caption,
                          .untold = is_guided ? caption : tensor::Batch(),
                          .seeds = {1},
                          .guidance = is_guided ? 2.0 : 1.0,
                          .halves = &mesh.group(run::kGuidanceAxis)};
    const double before = world.traffic().total().elements;
    draw(model, plan, drawing);
    sent += static_cast<int64_t>(world.traffic().total().elements - before);
  });
  return sent;
}

}  // namespace colossal::diffusion
