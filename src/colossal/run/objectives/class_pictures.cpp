#include "colossal/run/objectives/class_pictures.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/data/pictures/shape_samples.h"

namespace colossal::run {
namespace {

/// Opens the training and the held-out images: from folders named train and test (or val, validation), or from one
/// folder.
std::pair<data::PictureFolder, data::PictureFolder> open_folders(const Config& config) {
  namespace fs = std::filesystem;
  const DataConfig& d = config.data;
  std::error_code failed;
  if (!fs::is_directory(d.path + "/train", failed)) {
    const auto all = data::PictureFolder::open(d.path);
    return evaluates(config) && d.held_out > 0 ? all.split(d.held_out) : std::pair{all, data::PictureFolder{}};
  }
  std::pair<data::PictureFolder, data::PictureFolder> parts{data::PictureFolder::open(d.path + "/train"), {}};
  for (const char* name : {"/test", "/val", "/validation"}) {
    if (!evaluates(config) || !fs::is_directory(d.path + name, failed)) continue;
    parts.second = data::PictureFolder::open(d.path + name);
    parts.second.number_as(parts.first.classes);
    return parts;
  }
  require(!evaluates(config), "data", "there are pictures to train on in ", d.path,
          "/train but none to evaluate with: add a folder test or val, or set training.evaluate_batches = 0");
  return parts;
}

/// Checks that the model reads pictures in colour and has an output for each of their classes, if it has classes.
void check_pictures(const PictureClasses& model, size_t classes, const std::string& path) {
  require(model.count == 0 || static_cast<int64_t>(classes) <= model.count, "model",
          "classes must hold those of the pictures: got ", model.count, ", ", path, " has ", classes,
          "; set model.classes");
  require(model.channels == 3, "model", "channels must be 3 for pictures of ", path, ": got ", model.channels,
          "; set model.channels");
}

/// Returns the names of all classes of the model: those of the data, and LABEL_i for outputs that the data do not use.
std::vector<std::string> with_unused(std::vector<std::string> names, int64_t classes) {
  for (auto i = static_cast<int64_t>(names.size()); i < classes; ++i) names.push_back(concat("LABEL_", i));
  return names;
}

OpenedData open_folder(const Config& config, const PictureClasses& model, data::PictureOptions options) {
  const std::string& path = config.data.path;
  auto [training, held_out] = open_folders(config);
  check_pictures(model, training.classes.size(), path);
  if (!model.names.empty()) {
    training.number_as(model.names);
    if (!held_out.names.empty()) held_out.number_as(model.names);
  }
  std::vector<std::string> names = with_unused(training.classes, model.count);
  std::vector<std::string> notices;
  for (const data::PictureFolder* part : {&training, &held_out})
    if (part->left_out) notices.push_back(*part->left_out);
  OpenedData parts{.training = std::make_shared<data::PictureSamples>(std::move(training), options),
                   .class_names = std::move(names),
                   .notices = std::move(notices)};
  options.augment = false;
  if (!held_out.names.empty()) parts.held_out = std::make_shared<data::PictureSamples>(std::move(held_out), options);
  return parts;
}

/// Opens drawn shapes, `count` an epoch.
OpenedData open_shapes(const Config& config, const PictureClasses& model, const data::PictureOptions& options,
                       int64_t count) {
  const DataConfig& d = config.data;
  std::vector<std::string> names = data::shape_names();
  check_pictures(model, names.size(), d.path);
  data::ShapeOptions shapes{.count = count,
                            .width = options.width,
                            .height = options.height,
                            .mean = options.mean,
                            .deviation = options.deviation};
  if (!model.names.empty()) {
    shapes.labels = data::class_numbers(names, model.names, d.path);
    names = model.names;
  }
  OpenedData parts{.class_names = with_unused(std::move(names), model.count)};
  const int64_t held_out = data::held_out_shapes(count, d.held_out);
  if (evaluates(config) && held_out > 0) {
    data::ShapeOptions others = shapes;
    others.count = held_out;
    others.held_out = true;
    parts.held_out = std::make_shared<data::ShapeSamples>(std::move(others));
  }
  shapes.augment = options.augment;
  parts.training = std::make_shared<data::ShapeSamples>(std::move(shapes));
  return parts;
}

}  // namespace

OpenedData open_class_pictures(const Config& config, const PictureClasses& classes, data::PictureOptions options) {
  if (const auto count = data::parse_builtin_shapes(config.data.path))
    return open_shapes(config, classes, options, *count);
  return open_folder(config, classes, std::move(options));
}

}  // namespace colossal::run
