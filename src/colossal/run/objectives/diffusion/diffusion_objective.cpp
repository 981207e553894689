#include "colossal/run/objectives/diffusion/diffusion_objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/class_pictures.h"
#include "colossal/run/objectives/diffusion/variance_bound.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

/// Requires data.size to be the size of the model.
void check_size(const std::vector<int64_t>& size, const models::DenoiserSizes& model) {
  if (size.empty()) return;
  require(size.size() == 2, "data", "size must be a width and a height: got ", size.size(), " numbers");
  require(size[0] == model.width && size[1] == model.height, "data", "size must be that of a model of pixels, [",
          model.width, ", ", model.height, "]: got [", size[0], ", ", size[1],
          "]; set model.width and model.height, multiples of the patch of ", model.patch);
}

}  // namespace

DiffusionObjective::DiffusionObjective(const Config&, const OwnTables& tables, const models::ModelShape& shape)
    : sizes_(models::denoiser_of(shape)), class_names_(shape.task().class_names) {
  const auto data = tables.data<DrawnDataKeys>();
  check_size(data.size, sizes_);
  require(sizes_.channels == 3, "model", "channels must be 3 for a model of pixels (vae.from = \"none\"): got ",
          sizes_.channels, "; set model.channels = 3");
  options_ = {.keys = completed(tables.as<DiffusionKeys>(kDiffusion),
                                {.target = sizes_.target, .schedule = sizes_.schedule, .guidance = sizes_.guidance}),
              .channels = sizes_.channels,
              .height = sizes_.height,
              .width = sizes_.width,
              .null_class = sizes_.classes,
              .has_pictures = sizes_.outputs > sizes_.channels,
              .mirror = data.mirror};
  require(!options_.has_pictures || options_.keys.target == "epsilon", "diffusion",
          "a model that predicts a variance learns target = \"epsilon\": got ", options_.keys.target,
          "; set model.learned_sigma = false");
}

OpenedData DiffusionObjective::open(const DataRequest& request) const {
  const Config& config = request.config;
  check_unused_data_keys(config.data, {.images = true});
  const bool are_there = data::parse_builtin_shapes(config.data.path) || data::PictureFolder::is_one(config.data.path);
  require(are_there, "data",
          "path must be \"builtin-shapes\", or a folder with a folder of pictures for each class: got ",
          config.data.path);
  // Pixels of [0, 1] become those of [-1, 1].
  OpenedData data = open_class_pictures(config, {sizes_.classes, sizes_.channels, class_names_},
                                        {.width = sizes_.width,
                                         .height = sizes_.height,
                                         .mean = std::vector<double>(3, 0.5),
                                         .deviation = std::vector<double>(3, 0.5),
                                         .middle = 1,
                                         .on_error = on_error_of(config.data)});
  NoisedOptions held_out = options_;
  held_out.is_held_out = true;
  data.training = std::make_shared<NoisedSamples>(std::move(data.training), options_);
  if (data.held_out) data.held_out = std::make_shared<NoisedSamples>(std::move(data.held_out), held_out);
  data.threads = static_cast<int>(config.data.threads);
  return data;
}

tensor::Batch DiffusionObjective::example(int64_t rows) const { return noised_batch(rows, options_, at::kMeta); }

void DiffusionObjective::check(const tensor::Batch& batch) const {
  const at::Tensor& noised = batch.at(kNoised);
  require(noised.dim() == 4 && noised.size(1) == sizes_.channels && noised.size(2) == sizes_.height &&
              noised.size(3) == sizes_.width,
          "data", "noised must be [B, ", sizes_.channels, ", ", sizes_.height, ", ", sizes_.width, "]: got ",
          noised.sizes());
  require(batch.at(kTargets).sizes() == noised.sizes(), "data", "targets must have the sizes of noised, ",
          noised.sizes(), ": got ", batch.at(kTargets).sizes());
  for (const char* name : {kTimes, kWeights, kLevels})
    require(batch.at(name).dim() == 1, "data", name, " must be [B]: got ", batch.at(name).sizes());
  const at::Tensor& classes = batch.at(kClasses);
  if (!classes.device().is_cpu() || classes.numel() == 0) return;
  const int64_t least = classes.min().item<int64_t>(), most = classes.max().item<int64_t>();
  require(least >= 0 && most <= sizes_.classes, "data", "classes must be in [0, ", sizes_.classes, "]: got ",
          least < 0 ? least : most, "; set model.classes");
}

at::Tensor DiffusionObjective::losses(const models::Model& model, const models::States& end,
                                      const nn::ForwardContext& step) const {
  const at::Tensor predicted = models::predicted_picture(model.shape, end.at(0));
  const auto field = [&](const char* name) {
    return step.batch->at(name).to(predicted.device(), /*non_blocking=*/true).to(predicted.scalar_type());
  };
  const at::Tensor wanted = field(kTargets), mean = predicted.narrow(1, 0, sizes_.channels);
  at::Tensor losses = (mean - wanted).square().mean({1, 2, 3}) * field(kWeights);
  if (options_.has_pictures) {
    const VarianceBound bound(options_.keys.levels());
    losses = losses + bound.of_rows({.pictures = field(kPictures),
                                     .noised = field(kNoised),
                                     .times = field(kTimes),
                                     .noise = mean.detach(),
                                     .variance = predicted.narrow(1, sizes_.channels, sizes_.channels)});
  }
  return losses;
}

at::Tensor DiffusionObjective::loss(const models::Model& model, const models::States& end,
                                    const nn::ForwardContext& step) const {
  return losses(model, end, step).sum();
}

at::Tensor DiffusionObjective::evaluate(const models::Model& model, const models::States& end,
                                        const nn::ForwardContext& step) const {
  const at::Tensor of_rows = losses(model, end, step);
  const at::Tensor quarter = (step.batch->at(kLevels).to(of_rows.device()) * kQuarters).floor();
  std::vector<at::Tensor> sums{of_rows.sum()};
  for (int i = 0; i < kQuarters; ++i) {
    const at::Tensor is_in = (quarter == i).to(of_rows.scalar_type());
    sums.push_back((of_rows * is_in).sum());
    sums.push_back(is_in.sum());
  }
  return at::stack(sums);
}

std::vector<Metric> DiffusionObjective::metrics(const std::vector<double>& sums, double weight) const {
  std::vector<Metric> rows = Objective::metrics(sums, weight);
  for (int i = 0; i < kQuarters; ++i) {
    const double count = sums.at(2 + 2 * static_cast<size_t>(i));
    if (count > 0)
      rows.push_back({.name = concat("eval_loss_", i + 1),
                      .value = sums.at(1 + 2 * static_cast<size_t>(i)) / count,
                      .plot = "Held-out loss by noise level",
                      .legend = concat("quarter ", i + 1, i == 0 ? ", least noise" : "")});
  }
  return rows;
}

std::unique_ptr<Objective> make_diffusion(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape) {
  return std::make_unique<DiffusionObjective>(config, tables, shape);
}

}  // namespace colossal::run
