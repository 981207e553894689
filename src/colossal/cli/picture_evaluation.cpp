#include "colossal/cli/picture_evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/data/pictures/folder.h"
#include "colossal/data/pictures/image_samples.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/models/model.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/data_keys.h"
#include "colossal/run/stored_config.h"

namespace colossal::cli {
namespace {

constexpr int64_t kPicturesAtOnce = 32;

/// Returns how pictures of that model were shown in training, without augmentation.
data::PictureOptions options_of(const std::string& from, const models::Task& task, const run::Program& program) {
  data::PictureOptions options{.width = task.side};
  if (!run::is_run(from)) return options;
  const run::Config config = run::stored_config(from);
  const run::ResolvedModel model = run::resolve_model(config, program);
  const auto keys = model.objective.row.values().data<run::ClassKeys>();
  const bool is_cifar = data::is_cifar(config.data.path);
  options.mean = is_cifar ? data::kCifarMean : keys.image_mean;
  options.deviation = is_cifar ? data::kCifarDeviation : keys.image_deviation;
  if (data::parse_builtin_shapes(config.data.path)) options.middle = 1;  // shapes reach to the borders
  return options;
}

/// Numbers the classes of the folder as the model does: by their names, or if these are numbers, by them.
void number_classes(data::PictureFolder& folder, const models::Task& task) {
  const auto is_number = [](const std::string& name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); });
  };
  std::vector<std::string> order = task.class_names;
  if (std::all_of(folder.classes.begin(), folder.classes.end(), is_number)) {
    order.clear();
    for (int64_t i = 0; i < task.classes; ++i) order.push_back(std::to_string(i));
  }
  require(!order.empty(), "evaluate", "the folders of ", folder.path,
          " must have numbers of classes as names, because the model has no names of classes: got ",
          folder.classes.front());
  folder.number_as(order);
}

}  // namespace

int evaluate_pictures(const std::string& from, const std::string& folder, bool as_json, const LoadedModel& loaded,
                      const run::Program& program) {
  distributed::DistributedModel& model = *loaded.saved.model;
  const models::Task task = model.model().shape.task();
  require(task.reads == models::Reads::Images && task.classes > 0 && task.channels == 3, "evaluate",
          "--pictures needs a model that classifies images in color: got one that ", task.purpose());
  data::PictureFolder pictures = data::PictureFolder::open(folder);
  number_classes(pictures, task);
  const data::PictureSamples samples(std::move(pictures), options_of(from, task, program));
  const at::NoGradGuard no_grad;
  const int64_t parts = model.decoding_model().batch_parts, at_once = kPicturesAtOnce * parts;
  const at::TensorOptions numbers = at::TensorOptions(model.parameters().options().device).dtype(at::kLong);
  int64_t found = 0;
  for (int64_t first = 0; first < samples.count(); first += at_once) {
    const int64_t count = std::min(at_once, samples.count() - first);
    tensor::Batch batch = samples.make((count + parts - 1) / parts * parts);
    // Rows that only fill the layout are the last picture again, and are not counted.
    for (int64_t row = 0; row < batch.rows(); ++row) samples.fill(first + std::min(row, count - 1), 0, batch, row);
    const at::Tensor named = model.everywhere(
        nn::step_of(batch),
        [&](int, const models::States& end, const nn::ForwardContext& step) {
          return models::head_of(model.decoding_model()).logits(end.at(0), step).flatten(0, -2).argmax(-1);
        },
        at::empty({batch.rows()}, numbers));
    const at::Tensor labels = batch.at("labels").flatten();
    found += (named.to(at::kCPU).narrow(0, 0, count) == labels.narrow(0, 0, count)).sum().item<int64_t>();
  }
  if (!loaded.speaks()) return 0;
  const double accuracy = static_cast<double>(found) / static_cast<double>(samples.count());
  if (as_json)
    std::puts(json_line(nlohmann::ordered_json{{"accuracy", accuracy}, {"pictures", samples.count()}}).c_str());
  else
    std::printf("accuracy %s, %lld pictures\n", fixed_text(accuracy, 4).c_str(),
                static_cast<long long>(samples.count()));
  return 0;
}

}  // namespace colossal::cli
