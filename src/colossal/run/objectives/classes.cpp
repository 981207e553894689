// The objective of models that classify whole samples: labelled texts, CIFAR's images, folders of images, drawn shapes.
#include <filesystem>
#include <set>

#include "colossal/base/error.h"
#include "colossal/data/pictures/folder.h"
#include "colossal/data/pictures/image_samples.h"
#include "colossal/data/pictures/shape_samples.h"
#include "colossal/data/texts/labelled.h"
#include "colossal/run/objectives/built_in.h"
#include "colossal/run/objectives/head_objective.h"
#include "colossal/run/objectives/text_data.h"
#include "colossal/run/unused_keys.h"

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

/// Checks that the model reads pictures in colour and has an output for each of their classes.
void check_pictures(const models::Task& task, size_t classes, const std::string& path) {
  require(static_cast<int64_t>(classes) <= task.classes, "model", "classes must hold those of the pictures: got ",
          task.classes, ", ", path, " has ", classes, "; set model.classes");
  require(task.channels == 3, "model", "channels must be 3 for pictures of ", path, ": got ", task.channels,
          "; set model.channels");
}

/// Returns the names of all classes of the model: those of the data, and LABEL_i for outputs that the data do not use.
std::vector<std::string> with_unused(std::vector<std::string> names, int64_t classes) {
  for (auto i = static_cast<int64_t>(names.size()); i < classes; ++i) names.push_back(concat("LABEL_", i));
  return names;
}

OpenedData open_pictures(const Config& config, const ClassKeys& keys, const models::Task& task) {
  const DataConfig& d = config.data;
  auto [training, held_out] = open_folders(config);
  check_pictures(task, training.classes.size(), d.path);
  if (!task.class_names.empty()) {
    training.number_as(task.class_names);
    if (!held_out.names.empty()) held_out.number_as(task.class_names);
  }
  data::PictureOptions options{.side = task.side,
                               .mean = keys.image_mean,
                               .deviation = keys.image_deviation,
                               .augment = keys.augment,
                               .min_crop_area = keys.min_crop_area,
                               .on_error = on_error_of(d)};
  std::vector<std::string> names = with_unused(training.classes, task.classes);
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
OpenedData open_shapes(const Config& config, const ClassKeys& keys, const models::Task& task, int64_t count) {
  const DataConfig& d = config.data;
  refuse_unused_data_keys(keys, {{"min_crop_area", false, "a folder of pictures in data.path, not drawn shapes"}});
  std::vector<std::string> names = data::shape_names();
  check_pictures(task, names.size(), d.path);
  data::ShapeOptions options{
      .count = count, .side = task.side, .mean = keys.image_mean, .deviation = keys.image_deviation};
  if (!task.class_names.empty()) {
    options.labels = data::class_numbers(names, task.class_names, d.path);
    names = task.class_names;
  }
  OpenedData parts{.class_names = with_unused(std::move(names), task.classes)};
  const int64_t held_out = data::held_out_shapes(count, d.held_out);
  if (evaluates(config) && held_out > 0) {
    data::ShapeOptions others = options;
    others.count = held_out;
    others.held_out = true;
    parts.held_out = std::make_shared<data::ShapeSamples>(std::move(others));
  }
  options.augment = keys.augment;
  parts.training = std::make_shared<data::ShapeSamples>(std::move(options));
  return parts;
}

/// Opens the labelled texts of data.path. Errors ("data", "model"): errors of reading; classes that differ from the
/// model's.
OpenedData open_labelled(const DataRequest& request, const ClassKeys& keys) {
  const DataConfig& d = request.config.data;
  const text::Tokenizer& tokenizer = *request.tokenizer;
  const models::Task task = request.shape.task();
  require(d.path != "builtin", "data", "a model that ", task.purpose(),
          " reads labelled texts: name a file of lines `label<tab>text`, or a .jsonl, with --data.path=PATH");
  require(d.documents == "separate", "data",
          "documents must be separate for labelled texts, which must not attend to padding: got ", d.documents);
  const bool has_records = reads_records(d);
  check_unused_data_keys(d, {.records = has_records});
  const std::string images = "a model of images";
  refuse_unused_data_keys(keys, {{"label_column", has_records, kRecords},
                                 {"augment", false, images},
                                 {"image_mean", false, images},
                                 {"image_deviation", false, images},
                                 {"min_crop_area", false, images}});
  data::LabelledTexts all = data::read_labelled_texts(d.path, {.text_columns = d.text_columns,
                                                               .label_column = keys.label_column,
                                                               .max_line_bytes = d.max_line_bytes,
                                                               .on_error = on_error_of(d)});
  if (!task.class_names.empty()) all.number_as(task.class_names);
  const bool has_names = !all.names.empty();
  require(all.classes <= task.classes, "model", "classes must hold those of the texts: got ", task.classes, ", ",
          d.path, " has ", all.classes, "; set model.classes");
  const std::set<std::string> taken(all.names.begin(), all.names.end());
  for (int64_t i = all.classes; has_names && i < task.classes; ++i) {
    all.names.push_back(concat("LABEL_", i));
    require(!taken.contains(all.names.back()), "data", "class names must differ: an unused class would be named ",
            all.names.back(), " like a class of ", d.path, "; set model.class_names, or model.classes=", all.classes);
  }
  const auto [training, held_out] = all.split(d.held_out);
  OpenedData parts{.training = std::make_shared<data::LabelledSamples>(training, tokenizer, d.sequence),
                   .class_names = all.names,
                   .notices = all.skipped_records};
  if (evaluates(request.config) && d.held_out > 0)
    parts.held_out = std::make_shared<data::LabelledSamples>(held_out, tokenizer, d.sequence);
  return parts;
}

/// Opens the images of data.path with their classes. Errors ("data", "model"): errors of reading; sizes or classes that
/// differ from the model's.
OpenedData open_images(const Config& config, const ClassKeys& keys, const models::ModelShape& shape) {
  const models::Task task = shape.task();
  check_unused_data_keys(config.data, {.images = true});
  refuse_unused_data_keys(keys, {{"label_column", false, concat(kRecords, " for a model that classifies texts")}});
  if (const auto count = data::parse_builtin_shapes(config.data.path)) return open_shapes(config, keys, task, *count);
  if (data::PictureFolder::is_one(config.data.path)) return open_pictures(config, keys, task);
  const std::string folder = "a folder of pictures in data.path, not binary files of CIFAR";
  refuse_unused_data_keys(
      keys, {{"image_mean", false, folder}, {"image_deviation", false, folder}, {"min_crop_area", false, folder}});
  const auto read = [&](data::CifarPart part) {
    data::ImageSet set = data::read_cifar(config.data.path, part);
    require(set.classes <= task.classes, "model", "classes must hold those of the images: got ", task.classes,
            ", images of ", set.classes, "; set model.classes");
    require(set.pixels.size(1) == task.channels && set.pixels.size(2) == task.side, "model",
            "channels and side must be those of the images: got ", task.channels, " and ", task.side, ", images have ",
            set.pixels.size(1), " and ", set.pixels.size(2), "; set model.channels and model.side");
    return set;
  };
  OpenedData parts{.training = std::make_shared<data::ImageSamples>(read(data::CifarPart::Training), keys.augment)};
  if (evaluates(config)) parts.held_out = std::make_shared<data::ImageSamples>(read(data::CifarPart::Test), false);
  return parts;
}

/// The objective of a classifier. Labels [B, 1]: the class of each sample.
class Class : public CountingObjective {
 public:
  Class(const Config& config, const models::ModelShape& shape, ClassKeys keys);
  OpenedData open(const DataRequest& request) const override;

 private:
  ClassKeys keys_;
};

Class::Class(const Config& config, const models::ModelShape& shape, ClassKeys keys)
    : CountingObjective(config, shape), keys_(std::move(keys)) {
  const models::Task task = shape.task();
  check_head(task.reads != models::Reads::Fields && task.classes > 0, "class", "classifies whole samples", shape);
  refuse_unused_data_keys(keys_, {{"min_crop_area", keys_.augment, "data.augment"}});
}

OpenedData Class::open(const DataRequest& request) const {
  if (request.shape.task().reads_text()) return open_labelled(request, keys_);
  OpenedData data = open_images(request.config, keys_, request.shape);
  data.threads = static_cast<int>(request.config.data.threads);
  return data;
}

}  // namespace

std::unique_ptr<Objective> make_class(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<Class>(config, shape, tables.data<ClassKeys>());
}

}  // namespace colossal::run
