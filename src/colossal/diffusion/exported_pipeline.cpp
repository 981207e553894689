#include "colossal/diffusion/exported_pipeline.h"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/agreement.h"
#include "colossal/models/families/dit.h"

namespace colossal::diffusion {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{5} << 30;
constexpr char kVersion[] = "0.42.1";  // the version of diffusers that has these keys

/// Returns the scheduler that draws as the run does by default. Errors ("export"): a target that diffusers lacks.
json scheduler_of(const run::DiffusionKeys& keys) {
  const noise::Target target = keys.noise_target();
  require(target != noise::Target::Edm, "export",
          "no scheduler of diffusers draws with a model of this kind: got diffusion.target = \"edm\"; train with "
          "another target");
  if (target == noise::Target::Flow)
    return {{"_class_name", "FlowMatchEulerDiscreteScheduler"},
            {"_diffusers_version", kVersion},
            {"num_train_timesteps", keys.steps},
            {"shift", keys.flow().shift}};
  const bool is_cosine = keys.schedule == "cosine";
  const json schedule = is_cosine ? "squaredcos_cap_v2" : keys.schedule == "linear" ? "linear" : "scaled_linear";
  const noise::NoiseLevels levels(keys.levels());
  return {{"_class_name", "DDIMScheduler"},
          {"_diffusers_version", kVersion},
          {"num_train_timesteps", keys.steps},
          {"beta_schedule", schedule},
          {"beta_start", levels.options().beta_start},
          {"beta_end", levels.options().beta_end},
          {"prediction_type", target == noise::Target::V ? "v_prediction" : noise::name_of(target)},
          {"rescale_betas_zero_snr", keys.zero_terminal_snr},
          {"clip_sample", true},
          {"clip_sample_range", 1.0},
          {"set_alpha_to_one", true},
          {"steps_offset", 0},
          {"timestep_spacing", "leading"}};
}

json index_of(const json& scheduler, const std::vector<std::string>& names) {
  json index{{"_class_name", "DiTPipeline"},
             {"_diffusers_version", kVersion},
             {"transformer", {"diffusers", "DiTTransformer2DModel"}},
             {"scheduler", {"diffusers", scheduler.at("_class_name")}},
             {"vae", {nullptr, nullptr}}};
  for (size_t i = 0; i < names.size(); ++i) index["id2label"][std::to_string(i)] = names[i];
  return index;
}

}  // namespace

void export_pipeline(const std::string& folder, distributed::DistributedModel& model,
                     const run::DiffusionObjective& objective, comm::Group& world, at::ScalarType dtype) {
  const models::ModelShape& shape = model.model().shape;
  json config, scheduler;
  checkpoint::ExternalNames names{.stem = "diffusion_pytorch_model", .writes_copies = true};
  comm::agree(world, at::kCPU, [&] {
    config = models::dit_to_diffusers(shape);
    scheduler = scheduler_of(objective.keys());
    names.names = models::dit_diffusers_names(shape);
    names.copies = models::dit_diffusers_copies(shape);
    if (world.rank() != 0) return;
    create_folder(folder + "/transformer");
    create_folder(folder + "/scheduler");
  });
  checkpoint::export_weights(folder + "/transformer", model.parameters(), names, config, world, kMaxFileBytes, dtype);
  comm::agree(world, at::kCPU, [&] {
    if (world.rank() != 0) return;
    write_file(folder + "/scheduler/scheduler_config.json", scheduler.dump(2) + "\n");
    write_file(folder + "/model_index.json", index_of(scheduler, objective.class_names()).dump(2) + "\n");
  });
}

}  // namespace colossal::diffusion
